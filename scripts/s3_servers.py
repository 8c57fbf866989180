"""Set up the S3 servers that the tests start, in ``build/s3``; seconds when nothing changed.

OpenStack Swift from PyPI, hash-locked, in an environment of its own. With ``--all`` also Versity's gateway, built from its Go
module, which takes Go and some minutes.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "s3"
LOCKED = ROOT / "requirements" / "swift.txt"
GATEWAY = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"


def swift() -> None:
    """A virtual environment with what is locked."""
    home = HOME / "swift"
    wanted = hashlib.sha256(sys.version.encode() + LOCKED.read_bytes()).hexdigest()
    stamp = home / ".ready"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("s3: install OpenStack Swift", flush=True)
    venv.create(home, clear=True, with_pip=True)
    pip = (str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    subprocess.run((*pip, "--no-cache-dir", "--require-hashes", "-r", str(LOCKED)), check=True)
    stamp.write_text(wanted)


def gateway() -> None:
    """The binary, by Go's own checksums. Two cores are enough to build it in minutes, not in seconds."""
    target = HOME / "bin" / "versitygw"
    if target.exists():
        return
    if shutil.which("go") is None:
        print("s3: no Go here, so Versity's gateway is left out", flush=True)
        return
    print("s3: build Versity's gateway (some minutes)", flush=True)
    cache = HOME / "go"
    environment = os.environ | {"GOPATH": str(cache), "GOBIN": str(target.parent), "GOFLAGS": "-modcacherw"}
    subprocess.run(("go", "install", GATEWAY), check=True, env=environment, cwd=HOME)
    shutil.rmtree(cache)


HOME.mkdir(parents=True, exist_ok=True)
swift()
if "--all" in sys.argv[1:]:
    gateway()
