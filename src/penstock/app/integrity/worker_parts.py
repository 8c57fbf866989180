"""The parts of a store of several workers: each worker has a data directory and a part of tier 2 of its own.

Source: docs/design/0014-workers.md, docs/design/0072-rebuild-of-workers.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from penstock.app.integrity.source import Source
from penstock.app.settings import WORKERS_MAX
from penstock.app.tier2 import open_objects, shared_objects
from penstock.app.workers.layout import CONTAINERS_EACH, WorkerLayout, load_layout, worker_directory
from penstock.app.workers.layout import RECORD as WORKERS_RECORD
from penstock.codec.store.catalogue import DIRECTORY as CATALOGUE
from penstock.codec.store.catalogue import ObjectName
from penstock.model.errors import CorruptDataError, InvalidArgumentError
from penstock.model.urls import url_parts
from penstock.model.values.dataclass import dataclass
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.segmentstore.repair.rebuild import list_catalogue, read_object
from penstock.storage.chunks.claim import RECORD, TierRecord, load_record, tier_mark
from penstock.storage.machine.files import RealFiles

_PART = "worker-"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlaces:
    """Where the parts are, for ``open_source``. ``places``: by worker; a worker that is not in it has lost its part.

    ``data``: the data directory of the store, None: only tier 2 is known. ``workers``: their number, None: not known yet.
    """

    places: Mapping[int, str]
    endpoint: str | None
    data: Path | None = None
    workers: int | None = None


async def find_places(place: str, *, offload: Offload, endpoint: str | None, insecure: bool) -> WorkerPlaces | None:
    """The parts of the store of several workers in ``place``: its data directory, or its tier 2. None: it is no such place.

    Raises InvalidArgumentError (it is the directory or the part of one worker), VersionTooNewError, UnavailableError.
    """
    if url_parts(place).scheme:
        return await _in_bucket(place, endpoint=endpoint, insecure=insecure)
    path, is_store = _look(place)
    if is_store:
        return await _in_data_directory(path, offload=offload, endpoint=endpoint)
    parts = _parts_in(path)
    return WorkerPlaces(places=parts, endpoint=endpoint) if parts else None


def _look(place: str) -> tuple[Path, bool]:
    """The absolute path, and whether it is the data directory of a store of several workers. Raises InvalidArgumentError."""
    path = Path(place).absolute()
    if (path.parent.parent / WORKERS_RECORD).exists() and path.parent.name == "workers":
        raise one_worker(str(path), whole=str(path.parent.parent))
    return path, (path / WORKERS_RECORD).exists() or (path / "workers").is_dir()


def _parts_in(path: Path) -> Mapping[int, str]:
    """The parts in a directory of tier 2."""
    return {
        number: str(below)
        for below in (path.iterdir() if path.is_dir() else ())
        if below.is_dir() and (number := _number(below.name)) is not None
    }


def one_worker(place: str, *, whole: str | None = None) -> InvalidArgumentError:
    """The error for a place that holds the part of one worker."""
    return InvalidArgumentError(
        "this is the part of one worker. To rebuild the whole store, name the place that has the parts of all workers. To "
        "repair this worker in the store's data directory, use penstock rebuild --data DIR --worker N",
        place=place,
        whole=whole or str(Path(place).parent) if not url_parts(place).scheme else place.rstrip("/").rpartition("/")[0],
    )


def _number(name: str) -> int | None:
    number = name.removeprefix(_PART)
    return int(number) if name.startswith(_PART) and number.isdecimal() else None


async def _in_bucket(place: str, *, endpoint: str | None, insecure: bool) -> WorkerPlaces | None:
    if await tier_mark(open_objects(place, endpoint, insecure=insecure)) is not None:
        return None
    found: dict[int, str] = {}
    for number in range(WORKERS_MAX):
        part = f"{place.rstrip('/')}/{_PART}{number}"
        if await tier_mark(open_objects(part, endpoint, insecure=insecure)) is not None:
            found[number] = part
        elif found and number not in found:
            # A gap is reported as a lost part, once the number of workers is known from the others.
            workers = await _workers_of(open_objects(found[min(found)], endpoint, insecure=insecure))
            if workers is not None and number >= workers:
                break
    return WorkerPlaces(places=found, endpoint=endpoint) if found else None


async def _in_data_directory(path: Path, *, offload: Offload, endpoint: str | None) -> WorkerPlaces:
    """The parts of tier 2, by the records of the workers. If a worker's directory is lost, its part of tier 2 is beside the
    parts of the others."""
    workers: int | None = None
    with suppress(CorruptDataError):  # The catalogues have the number too.
        layout = load_layout(path)
        workers = None if layout is None else layout.workers
    numbers = range(workers) if workers is not None else _worker_directories(path)
    found: dict[int, str] = {}
    root: str | None = None
    lost: list[int] = []
    for number in numbers:
        own = worker_directory(path, number)
        record = await readable_record(own, offload)
        if record is not None:
            beside, _, name = record.place.rstrip("/").rpartition("/")
            if name == f"{_PART}{number}":
                root, endpoint = root or beside, endpoint or record.endpoint
        if record is not None or (own / CATALOGUE).is_dir():
            found[number] = str(own)
        else:
            lost.append(number)
    for number in lost:
        if root is not None:
            found[number] = f"{root}/{_PART}{number}"
    return WorkerPlaces(places=found, endpoint=endpoint, data=path, workers=workers)


def _worker_directories(path: Path) -> Sequence[int]:
    below = path / "workers"
    return sorted(int(entry.name) for entry in below.iterdir() if entry.name.isdecimal()) if below.is_dir() else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPart:
    """One worker's part of tier 2, open for reading."""

    worker: int
    source: Source


async def check_parts(found: WorkerPlaces, parts: Sequence[WorkerPart], *, place: str) -> WorkerLayout:
    """Check that the parts are all parts of one store. Changes nothing.

    Raises InvalidArgumentError: a part is missing or has no catalogue, or belongs to another worker or another store.
    """
    totals: dict[int, int] = {}
    for part in parts:
        await check_mark(part.source)
        listed = await list_catalogue(part.source.objects)
        total = await _total(part.source.objects, listed)
        if total is not None:
            totals[part.worker] = total
    workers = found.workers or max((total // CONTAINERS_EACH for total in totals.values()), default=0)
    missing = [number for number in range(workers) if number not in totals]
    if missing or not workers:
        raise InvalidArgumentError(
            "tier 2 lacks the parts of some workers, and without them streams would have gaps. Nothing was changed. Mount or "
            "copy the parts to this place, and try again",
            place=place,
            workers=workers or None,
            missing=", ".join(f"{_PART}{number}" for number in missing) or None,
        )
    layout = WorkerLayout(workers=workers, containers=workers * CONTAINERS_EACH)
    for part in parts:
        listed = await list_catalogue(part.source.objects)
        strange = [index for index in listed if part.worker >= workers or index not in layout.owned(part.worker)]
        if strange or totals.get(part.worker) != layout.containers:
            raise InvalidArgumentError(
                "parts of tier 2 do not belong together: one is another worker's or another store's. Nothing was changed",
                place=part.source.place,
                worker=part.worker,
                containers=totals.get(part.worker),
                expected=layout.containers,
                strange=", ".join(map(str, strange)) or None,
            )
    return layout


async def readable_record(own: Path, offload: Offload) -> TierRecord | None:
    """What a worker's directory records about its tier 2; None: nothing that can be read. Raises VersionTooNewError."""
    with suppress(CorruptDataError):
        return await load_record(RealFiles(own, offload, read_only=True))
    return None


def part_place(tier2: str, worker: int) -> str:
    """The part of a worker in the tier 2 of its store. Nothing is made."""
    root = tier2 if url_parts(tier2).scheme else str(Path(tier2).absolute())
    return f"{root.rstrip('/')}/{_PART}{worker}"


async def check_belongs(
    data: Path,
    worker: int,
    layout: WorkerLayout,
    *,
    place: str,
    endpoint: str | None,
    insecure: bool,
    offload: Offload,
) -> None:
    """Check that ``place`` is the worker's part of tier 2 of the store in ``data``. If the worker's directory does not have
    its mark, the marks of the other workers show whose the parts beside it are.

    Raises InvalidArgumentError (it is another store's), UnavailableError.
    """
    own = worker_directory(data, worker)
    if place == str(own):
        return  # ``check_mark`` compares.
    record = await readable_record(own, offload)
    root, _, name = place.rstrip("/").rpartition("/")
    if record is not None:
        known = {name: record.store}
    else:
        known = {}
        for number in range(layout.workers):
            other = worker_directory(data, number)
            found = await readable_record(other, offload) if number != worker else None
            if found is not None:
                known[f"{_PART}{number}"] = found.store
            elif number != worker and (other / CATALOGUE).is_dir():
                raise InvalidArgumentError(
                    "the workers of this store keep their tier 2 in their directories, not in this place",
                    tier2=root,
                    worker=number,
                )
    for part, store in known.items():
        objects = shared_objects(f"{root}/{part}", endpoint, insecure=insecure, offload=offload)
        mark = await tier_mark(objects)
        if mark != store:
            raise InvalidArgumentError(
                "tier 2 belongs to another store. Nothing was changed", tier2=f"{root}/{part}", store=mark, own=store
            )


async def check_mark(source: Source) -> None:
    """Check that tier 2 is that of the data directory. Raises InvalidArgumentError."""
    if source.files is None:
        return
    record = await load_record(source.files) if await source.files.exists(RECORD) else None
    if record is None:
        return
    mark = await tier_mark(source.objects)
    if mark is None and record.claimed:
        raise InvalidArgumentError(
            "tier 2 lacks the chunks of this store; check the mount and the prefix", tier2=source.place
        )
    if mark not in (None, record.store):
        raise InvalidArgumentError("tier 2 belongs to another store", tier2=source.place, store=mark, own=record.store)


async def total_containers(objects: Objects) -> int | None:
    """The number of containers of the whole store, from the catalogue; None: no object of it can be read."""
    return await _total(objects, await list_catalogue(objects))


async def _total(objects: Objects, listed: Mapping[int, Sequence[ObjectName]]) -> int | None:
    for names in listed.values():
        for name in sorted(names, key=lambda one: one.run, reverse=True):
            try:
                return (await read_object(objects, str(name))).containers
            except CorruptDataError:
                continue  # It is reported when the rows are loaded.
    return None


async def _workers_of(objects: Objects) -> int | None:
    total = await total_containers(objects)
    return None if total is None else total // CONTAINERS_EACH
