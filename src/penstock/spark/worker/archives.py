"""Spark's archives of PySpark on the path of Python, and how its processes do without them.

Spark puts ``pyspark.zip`` in front. Archives have no bytecode: Python compiles each module of it again in each process
that Spark starts, 0.7 to 1 s of CPU. Imports little: it runs before everything else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from zipimport import zipimporter


def superseded(path: Sequence[str]) -> list[str]:
    """The archives of ``path`` of whose package another entry has the same version as files."""
    archives = [entry for entry in path if entry.endswith(".zip") and os.path.isfile(entry)]
    files = [entry for entry in path if entry not in archives]
    return [one for one in archives if any(_is_same(one, package, files) for package in ("pyspark", "py4j"))]


def _is_same(archive: str, package: str, files: Sequence[str]) -> bool:
    found = PathFinder.find_spec(package, list(files))
    if found is None or found.origin is None:
        return False
    try:
        with open(os.path.join(os.path.dirname(found.origin), "version.py"), "rb") as version:
            return zipimporter(archive).get_data(os.path.join(archive, package, "version.py")) == version.read()
    except (ImportError, OSError):
        return False


def main() -> None:
    """The command ``penstock-spark-python``: become Python, with the same arguments and without these archives."""
    left_out = superseded(sys.path)
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in entries if entry not in left_out)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
