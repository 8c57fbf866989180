"""Load files or a data frame into a stream once, in order per key, and in parts if the input is large.

Source: docs/reference/spark.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field, replace
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from penstock.model.errors import InvalidArgumentError, NotFoundError, ScopeNotFoundError, StreamNotFoundError
from penstock.model.values.dataclass import dataclass
from penstock.spark.connect import Connector, Services, dial, link
from penstock.spark.jobs.job_files import literal
from penstock.spark.jobs.progress import (
    Progress,
    ProgressCallback,
    ignore_progress,
    repeat_in_background,
    task_progress,
)
from penstock.spark.options import NO_QUERY, WriteOptions, parse_write
from penstock.spark.schema import EVENT, ROUTING_KEY

FORMATS = ("parquet", "csv", "json", "orc", "text")
_SUFFIXES = {
    "parquet": "parquet",
    "csv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "orc": "orc",
    "txt": "text",
}
_ORDER = re.compile(r"(?P<what>.+?)(?:\s+(?P<way>asc|desc))?\s*\Z", re.IGNORECASE | re.DOTALL)
_TASK_BYTES = 128 << 20
_PROGRESS_S = 1.0
_SAMPLE = 3  # events shown to the user


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """What to load, and how.

    paths: Files or directories that driver and executors see, all of one format. They must not change during the load.
        They are names, not patterns.
    write: Options of the sink, as for ``df.write``: ``controller``, ``stream``, ``default_num_segments``, …
    format: One of ``FORMATS``. None: by the suffix of the files.
    reader: Options of Spark's reader of that format. CSV has a header unless an option turns it off.
    schema: Spark's DDL of the input. None: Spark infers it.
    event: An expression for the event, binary or string. None: the column ``event`` if it has one of these types, else
        ``to_json(struct(*))``.
    key: An expression for the routing key. None: events are distributed over the segments.
    order_by: Expressions, each optionally followed by ``asc`` or ``desc``. Events of one key are written in this order.
    part_bytes: Size of a part, in bytes of input. Each part is one transaction.
    again: Load the input even if it was loaded before.
    root: Identify files by their paths below this directory, wherever it is mounted. None: by their whole paths.
    """

    paths: tuple[str, ...]
    write: Mapping[str, str]
    format: str | None = None
    reader: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None
    event: str | None = None
    key: str | None = None
    order_by: tuple[str, ...] = ()
    part_bytes: int = 8 << 30
    again: bool = False
    root: str | None = None

    def checked(self) -> LoadRequest:
        """Itself. Raises InvalidArgumentError."""
        if not self.paths:
            raise InvalidArgumentError("name at least one file or directory to load")
        if self.format is not None and self.format not in FORMATS:
            raise InvalidArgumentError(f"formats are {', '.join(FORMATS)}", format=self.format)
        if self.order_by and self.key is None:
            raise InvalidArgumentError(
                "order is kept for each routing key: name one, or give all events the same with a key of \"'all'\""
            )
        for path in self.paths:
            if _is_skipped(path):
                raise InvalidArgumentError(
                    "Spark skips files whose names begin with _ or a dot; rename the file", path=repr(path)
                )
        if self.part_bytes < 1:
            raise InvalidArgumentError("a part must hold at least 1 byte", part_bytes=self.part_bytes)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The result of a load or, with ``dry_run``, its plan.

    ``load`` is its name: the same files with the same options give the same name. ``skipped``: parts that an earlier run
    has written. ``events`` and ``event_bytes`` count what this run has written. ``sample``: the first events of a dry run.
    """

    load: str
    stream: str
    files: int
    file_bytes: int
    parts: int
    skipped: int
    events: int
    event_bytes: int
    dry_run: bool
    sample: tuple[Mapping[str, str | None], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, order=True)
class InputFile:
    """A listed file. ``modified_ms``: its time of change, by the clock of its file system."""

    path: str
    size_bytes: int
    modified_ms: int


def load(
    spark: Any,
    request: LoadRequest,
    *,
    on_progress: ProgressCallback = ignore_progress,
    dry_run: bool = False,
    connector: Connector = dial,
) -> LoadReport:
    """Load files into a stream. Creates the stream if it is missing (see ``allow_create_stream``).

    Each part is one transaction: readers see all of it or nothing. A load that was interrupted continues with the first
    missing part. A part consists of files, in the order of their names. With ``order_by``, a part consists of keys, chosen
    by their hash, and each part reads the whole input, because events of one key can be in several files.

    Raises InvalidArgumentError, NotFoundError (no such files), StreamSealedError, UnavailableError, and Spark's errors for
    invalid expressions and failed tasks.
    """
    request = request.checked()
    options = parse_write(request.write)
    kind = request.format or _format_of(request.paths)
    whole = _read(spark, request, kind, request.paths, None)
    files = _listed(spark, whole)
    parts = _parts(files, request)
    name = f"load-{digest_of(files, request, kind)[:32]}"
    if request.again:
        name += f"-again-{uuid4().hex[:8]}"
    last = link(connector, options.controller).served().ask(lambda services: _last(services, options, name))
    written = 0 if last is None else last + 1
    report = LoadReport(
        load=name,
        stream=str(options.stream),
        files=len(files),
        file_bytes=sum(file.size_bytes for file in files),
        parts=len(parts),
        skipped=written,
        events=0,
        event_bytes=0,
        dry_run=dry_run,
    )
    if dry_run:
        return replace(report, sample=_sample(events_of(whole, request)))
    for number in range(written, len(parts)):
        on_progress(Progress(what="parts", done=number, total=len(parts)))
        frame = whole if len(parts) == 1 else _part(spark, request, kind, whole, parts, number)
        events = events_of(frame, request, shuffle=_tasks(spark, parts[number]))
        if request.order_by and len(parts) > 1:
            events = events.where(f"pmod(xxhash64({ROUTING_KEY}), {len(parts)}) = {number}")
        job = {"txnAppId": name, "txnVersion": str(number), "txnQuery": NO_QUERY}
        count, size = write_counted(spark, ordered(events, request), {**request.write, **job}, on_progress)
        report = replace(report, events=report.events + count, event_bytes=report.event_bytes + size)
    on_progress(Progress(what="parts", done=len(parts), total=len(parts)))
    return report


def load_frame(
    spark: Any,
    frame: Any,
    request: LoadRequest,
    *,
    job: tuple[str, int] | None = None,
    tasks: int = 8,
    on_progress: ProgressCallback = ignore_progress,
) -> tuple[int, int]:
    """Write a data frame like ``load``, as one transaction. Ignores ``request.paths``.

    ``job``: application and version; the frame is written once under this identity. Versions must rise. ``tasks``: number
    of writing tasks if there is an order. Returns the number of events in the frame and their bytes, even if this version
    was written before.
    """
    identity = {} if job is None else {"txnAppId": job[0], "txnVersion": str(job[1])}
    events = events_of(frame, request, shuffle=tasks)
    return write_counted(spark, ordered(events, request), {**request.write, **identity}, on_progress)


def events_of(frame: Any, request: LoadRequest, *, shuffle: int = 1) -> Any:
    """The columns ``event`` and, with a key, ``routing_key``. With an order, there are ``shuffle`` partitions, each key is
    in one of them, and the columns ``_0``, ``_1``, … have the values to order by."""
    from pyspark.sql import functions as fn

    kinds = {item.name: item.dataType.simpleString() for item in frame.schema.fields}
    own = kinds.get(EVENT) in ("binary", "string")
    expression = request.event or (f"`{EVENT}`" if own else "to_json(struct(*))")
    columns = [fn.expr(expression).alias(EVENT)]
    if request.key is not None:
        columns.append(fn.expr(request.key).cast("string").alias(ROUTING_KEY))
    columns += [fn.expr(_ordering(item)[0]).alias(f"_{index}") for index, item in enumerate(request.order_by)]
    found = frame.select(*columns)
    kind = found.schema[EVENT].dataType.simpleString()
    if kind not in ("binary", "string"):
        raise InvalidArgumentError(
            "an event must be binary or a string; wrap the expression in to_json or cast it", type=kind
        )
    return found.repartition(shuffle, ROUTING_KEY) if request.order_by else found


def ordered(events: Any, request: LoadRequest) -> Any:
    """The events, sorted within each partition. A task writes its rows in order, so the stream has the same order."""
    from pyspark.sql import functions as fn

    if not request.order_by:
        return events
    ways = [_ordering(item)[1] for item in request.order_by]
    order = [fn.col(f"_{index}").desc() if way else fn.col(f"_{index}").asc() for index, way in enumerate(ways)]
    return events.sortWithinPartitions(*order).select(EVENT, ROUTING_KEY)


def _ordering(text: str) -> tuple[str, bool]:
    match = _ORDER.match(text.strip())
    if match is None:
        raise InvalidArgumentError(
            "an order must be an expression, optionally followed by asc or desc", order_by=repr(text)
        )
    return match["what"], (match["way"] or "").lower() == "desc"


def write_counted(
    spark: Any, events: Any, options: Mapping[str, str], on_progress: ProgressCallback
) -> tuple[int, int]:
    """Write the events. Returns the number of events and their bytes."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as fn

    seen = Observation()
    watched = events.observe(seen, fn.count(fn.lit(1)).alias("events"), fn.sum(fn.octet_length(EVENT)).alias("bytes"))
    with repeat_in_background(task_progress(spark, on_progress, "tasks"), every_s=_PROGRESS_S):
        watched.write.format("penstock").options(**options).mode("append").save()
    found = seen.get
    return int(found["events"] or 0), int(found["bytes"] or 0)


def digest_of(files: Sequence[InputFile], request: LoadRequest, kind: str) -> str:
    """Identify a load by its files (path, size and time) and by how they become events. Hexadecimal SHA-256.

    The digest contains whole paths, because files with equal names, sizes and times in two directories are two inputs.
    With a root, it contains the paths below it. Raises InvalidArgumentError if a file is not below the root.
    """
    facts = {
        "files": sorted(
            [_identifying_path(file.path, request.root), file.size_bytes, file.modified_ms] for file in files
        ),
        "format": kind,
        "reader": dict(sorted(request.reader.items())),
        "made": [request.schema, request.event, request.key, list(request.order_by), request.part_bytes],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _identifying_path(path: str, root: str | None) -> str:
    """The part of a path that identifies the file. Spark returns a local path as file:/DIR/NAME, whatever form was given."""
    if root is None:
        return path
    place, known = _without_file_scheme(root), _without_file_scheme(path)
    place = place if "://" in place else os.path.abspath(place)
    above = f"{place.rstrip('/')}/"
    # Compare from the start: the root's name can also occur in the middle of another path.
    if not known.startswith(above):
        raise InvalidArgumentError("a file does not lie below the root", path=path, root=root)
    return known.removeprefix(above)


def _without_file_scheme(path: str) -> str:
    return path.removeprefix("file:").removeprefix("//") if path.startswith("file:/") else path


def _is_skipped(path: str) -> bool:
    """Whether Spark skips a file with this name."""
    name = path.rstrip("/").rpartition("/")[2]
    return name[:1] in ("_", ".") and name not in (".", "..") and "=" not in name


def _parts(files: Sequence[InputFile], request: LoadRequest) -> Sequence[Sequence[InputFile]]:
    """The files of each part. With an order, each part has all files."""
    if request.order_by:
        total = sum(file.size_bytes for file in files)
        return [files] * max(1, -(-total // request.part_bytes))
    parts: list[list[InputFile]] = [[]]
    filled = 0
    for file in sorted(files):
        if parts[-1] and filled + file.size_bytes > request.part_bytes:
            parts.append([])
            filled = 0
        parts[-1].append(file)
        filled += file.size_bytes
    return parts


def _part(
    spark: Any, request: LoadRequest, kind: str, whole: Any, parts: Sequence[Sequence[InputFile]], number: int
) -> Any:
    if request.order_by:
        return whole
    return _read(spark, request, kind, tuple(file.path for file in parts[number]), whole.schema)


def _read(spark: Any, request: LoadRequest, kind: str, paths: Sequence[str], schema: Any) -> Any:
    reader = spark.read.format(kind)
    if kind == "csv":
        reader = reader.option("header", "true")
    reader = reader.options(**request.reader)
    wanted = schema if schema is not None else request.schema
    if wanted is not None:
        reader = reader.schema(wanted)
        if schema is not None and len(request.paths) == 1 and "basePath" not in request.reader:
            # Keeps the partition columns of the directories (a=1/b=2/) when only some of the files are read.
            reader = reader.option("basePath", request.paths[0])
    with _missing_input(request.paths):
        return reader.load([literal(path) for path in paths])


@contextmanager
def _missing_input(paths: Sequence[str]) -> Iterator[None]:
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        match error.getCondition():
            case "PATH_NOT_FOUND":
                raise NotFoundError("there is no such input", path=", ".join(paths)) from None
            case "UNABLE_TO_INFER_SCHEMA":
                raise NotFoundError("the input holds no data; if that is correct, give its schema") from None
        raise


def _listed(spark: Any, frame: Any) -> Sequence[InputFile]:
    # Decode the path, because Spark returns it encoded as in a URL.
    paths = [unquote(path) for path in frame.inputFiles()]
    if not paths:
        raise NotFoundError("the input holds no files")
    found = spark.read.format("binaryFile").load([literal(path) for path in paths])
    rows = found.select("path", "length", "modificationTime").collect()
    if not rows:
        raise NotFoundError("the input holds no data: all of its files are empty", path=", ".join(paths)[:200])
    return sorted(InputFile(row.path, row.length, int(row.modificationTime.timestamp() * 1000)) for row in rows)


def _tasks(spark: Any, files: Sequence[InputFile]) -> int:
    size = sum(file.size_bytes for file in files)
    return max(int(spark.conf.get("spark.sql.shuffle.partitions")), -(-size // _TASK_BYTES))


def _format_of(paths: Sequence[str]) -> str:
    """The format by file name. A directory has no suffix and counts as Parquet."""
    kinds: set[str] = set()
    for path in paths:
        name = path.rstrip("/").rpartition("/")[2].lower()
        for ending in (".gz", ".bz2", ".zst", ".snappy"):
            name = name.removesuffix(ending)
        _, dot, suffix = name.rpartition(".")
        if dot and suffix not in _SUFFIXES:
            raise InvalidArgumentError(
                f"the format is not clear from the name; give one of {', '.join(FORMATS)}", path=path
            )
        kinds.add(_SUFFIXES[suffix] if dot else "parquet")
    if len(kinds) != 1:
        raise InvalidArgumentError("all files of a load must have the same format", formats=", ".join(sorted(kinds)))
    return kinds.pop()


def _sample(events: Any) -> tuple[Mapping[str, str | None], ...]:
    return tuple(
        {
            name: value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else value
            for name, value in row.asDict().items()
            if name in (EVENT, ROUTING_KEY)
        }
        for row in events.limit(_SAMPLE).collect()
    )


async def _last(services: Services, options: WriteOptions, name: str) -> int | None:
    try:
        return await services.controller.batches.last(options.stream, writer=f"{name}/{options.stream}")
    except (StreamNotFoundError, ScopeNotFoundError):
        return None
