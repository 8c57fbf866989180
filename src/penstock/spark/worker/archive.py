"""An archive of Penstock and of what it needs in Python workers, for clusters whose workers lack them.

Spark unpacks it beside each executor (``--archives``), and ``PYTHONPATH`` names it there. It holds packages without an
interpreter: workers run their own, of the same version and platform. Source: docs/how-to/spark-cluster.md.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from penstock.model.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from penstock.model.values.dataclass import dataclass

ROOT = "penstock"
_OWN = ("penstock", "pyspark_penstock")
_SUFFIXES = (".tar.gz", ".tgz")
_SPARKS_OWN = frozenset({"pyspark", "pyspark-client", "py4j"})
"""What every executor has: Spark itself."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What an archive holds. ``conf``: the settings of Spark with which workers find it."""

    path: Path
    size_bytes: int
    packages: Sequence[tuple[str, str]]
    python: str
    conf: dict[str, str]


def write_archive(path: Path, *, extras: Sequence[str] = ("spark",)) -> Archive:
    """Write the archive from the packages that are installed here. Returns what it holds.

    Args:
        path: The file to make: ``.tar.gz`` or ``.tgz``. It appears when it is complete.
        extras: Extras of Penstock whose packages workers need: ``spark``, and ``s3`` where they read a bucket.
    Raises: InvalidArgumentError (another suffix, an unknown extra), AlreadyExistsError, NotFoundError (a package of an
    extra is not installed).
    """
    if not path.name.endswith(_SUFFIXES):
        raise InvalidArgumentError("Spark unpacks archives by their suffix: use .tar.gz", path=path)
    if path.exists():
        raise AlreadyExistsError("the file exists; delete it, or give another name", path=path)
    found = packages_of("penstock", extras)
    part = path.with_name(f".{path.name}.part")
    try:
        with tarfile.open(part, "w:gz", compresslevel=1) as target:
            seen: set[str] = set()
            for name, place in _files(found):
                if name not in seen:
                    seen.add(name)
                    target.add(place, arcname=name, recursive=False)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
    return Archive(
        path=path,
        size_bytes=path.stat().st_size,
        packages=[(item.metadata["Name"], item.version) for item in found],
        python=f"{sys.version_info.major}.{sys.version_info.minor} on {sysconfig.get_platform()}",
        conf={"spark.archives": f"{path.absolute()}#{ROOT}", "spark.executorEnv.PYTHONPATH": ROOT},
    )


def packages_of(root: str, extras: Sequence[str]) -> list[Distribution]:
    """The distribution, those of the extras, and all that they need, without Spark. Sorted by name.

    Raises: InvalidArgumentError (an unknown extra), NotFoundError.
    """
    found: dict[str, Distribution] = {}
    left: list[tuple[str, frozenset[str]]] = [(root, frozenset(extras))]
    unknown = set(extras) - set(distribution(root).metadata.get_all("Provides-Extra") or ())
    if unknown:
        raise InvalidArgumentError("there is no such extra", extra=", ".join(sorted(unknown)))
    while left:
        name, wanted = left.pop()
        plain = re.sub(r"[-_.]+", "-", name).lower()
        if plain in found or plain in _SPARKS_OWN:
            continue
        found[plain] = _installed(name)
        for requirement in found[plain].requires or ():
            match, extra = _NAME.match(requirement), _EXTRA.search(requirement)
            if match is None or (extra is not None and extra[1] not in wanted):
                continue
            # Requirements for other platforms and versions of Python are not installed here.
            if extra is not None or _is_installed(match[0]):
                left.append((match[0], frozenset()))
    return [found[name] for name in sorted(found)]


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise NotFoundError("a package that workers need is not installed here", package=name) from None


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _files(found: Sequence[Distribution]) -> Iterator[tuple[str, Path]]:
    """Each file with its name below the directory of packages. Scripts and compiled bytecode are left out."""
    for name in _OWN:
        # From where it is imported: an editable installation has its files elsewhere.
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise NotFoundError("a package that workers need is not installed here", package=name)
        base = Path(next(iter(spec.submodule_search_locations)))
        for place in sorted(base.rglob("*")):
            if place.is_file() and "__pycache__" not in place.parts:
                yield f"{name}/{place.relative_to(base)}", place
    for item in found:
        for file in item.files or ():
            if file.parts[0] != ".." and "__pycache__" not in file.parts and not file.name.endswith(".pth"):
                place = Path(str(item.locate_file(file)))
                if place.is_file():
                    yield str(file), place
