"""Set up ``.venv`` in this checkout from the hash-locked files; seconds when nothing changed.

Uses the standard library alone, for it runs before anything is installed. Leaves nothing outside the checkout.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".ready"
INPUTS = ("requirements/build.txt", "requirements/lock.txt", "pyproject.toml", "scripts/setup.py")
NEEDED_BYTES = 3 << 30  # 1.6 GB installed, as much again while pyspark is built


def fail(message: str) -> None:
    """Stop with one line that says what is missing."""
    sys.exit(f"setup: {message}")


def digest() -> str:
    content = hashlib.sha256(sys.version.encode())
    for name in INPUTS:
        content.update((ROOT / name).read_bytes())
    return content.hexdigest()


def check_machine() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs on whatever Python is there
        fail(f"Python 3.11 or later is needed, this is {sys.version.split()[0]}; try: make PYTHON=python3.11")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        fail("this Python has no venv module; on Debian and Ubuntu: apt install python3-venv")
    if not sys.platform.startswith("linux"):
        fail(f"Linux is needed, this is {sys.platform}")
    free = shutil.disk_usage(ROOT).free
    if free < NEEDED_BYTES:
        fail(f"{NEEDED_BYTES >> 30} GiB of free disk are needed for .venv, {free / (1 << 30):.1f} GiB are there")


def run(what: str, *command: str, needed: bool = True) -> bool:
    """Whether the command succeeded. One that is ``needed`` ends the setup if it fails."""
    print(f"setup: {what}", flush=True)
    log = VENV / "setup.log"
    started = time.monotonic()
    with log.open("ab") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=environment())
        while True:
            try:
                status = process.wait(timeout=20)
                break
            except subprocess.TimeoutExpired:
                print(f"setup: ... {time.monotonic() - started:.0f} s", flush=True)
    if status and needed:
        tail = log.read_text(errors="replace").splitlines()[-8:]
        print("\n".join(tail), file=sys.stderr)
        fail(f"{what} failed, the whole output is in {log.relative_to(ROOT)}")
    return status == 0


def environment() -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return clean | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def install(wanted: str) -> None:
    if VENV.exists():
        shutil.rmtree(VENV)
    print(f"setup: create {VENV.relative_to(ROOT)} with Python {sys.version.split()[0]}", flush=True)
    # Not the Python of the environment itself: it has just been removed.
    base = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([base, "-m", "venv", str(VENV)], check=True, env=environment())
    python = str(VENV / "bin" / "python")
    pip = (python, "-m", "pip", "install", "--no-cache-dir", "--quiet")
    run("install build tools", *pip, "--require-hashes", "-r", "requirements/build.txt")
    locked = ("--require-hashes", "--no-build-isolation", "-r", "requirements/lock.txt")
    what = "install what is locked in requirements/lock.txt (a minute or two, the first time)"
    uv = (str(VENV / "bin" / "uv"), "pip", "install", "--no-cache", "--quiet", "--system-certs", "--python", python)
    if not run(what, *uv, *locked, needed=False):
        # uv does not know pip's own configuration: mirrors, proxies, certificates.
        run("install it with pip, since uv could not (some minutes)", *pip, *locked)
    run("install penstock itself, editable", *pip, "--no-deps", "--no-build-isolation", "--editable", ".")
    STAMP.write_text(wanted)


def main() -> None:
    wanted = digest()
    if STAMP.exists() and STAMP.read_text() == wanted:
        print("setup: .venv is up to date")
        return
    check_machine()
    started = time.monotonic()
    install(wanted)
    print(
        f"setup: done in {time.monotonic() - started:.0f} s; `source .venv/bin/activate` puts `penstock` on your path"
    )


if __name__ == "__main__":
    main()
