"""Set up Prometheus for the tests of alerts and metrics, in ``build/prometheus``; seconds when it is there.

The binaries come from Debian's package, which is unpacked and not installed, so this needs ``apt-get`` and ``dpkg-deb``.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent / "build" / "prometheus"
NAMES = ("prometheus", "promtool")


def main() -> None:
    if all((HOME / name).exists() for name in NAMES):
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        sys.exit(
            "prometheus: apt-get and dpkg-deb are needed; elsewhere put prometheus and promtool into build/prometheus"
        )
    HOME.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        for command in (("apt-get", "-qq", "update"), ("apt-get", "-qq", "download", "prometheus")):
            subprocess.run(command, cwd=directory, check=True)
        (package,) = directory.glob("*.deb")
        subprocess.run(("dpkg-deb", "-x", str(package), "unpacked"), cwd=directory, check=True)
        for binary in NAMES:
            shutil.copy2(directory / "unpacked" / "usr" / "bin" / binary, HOME / f"{binary}.new")
            os.replace(HOME / f"{binary}.new", HOME / binary)


if __name__ == "__main__":
    main()
