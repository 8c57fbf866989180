"""Options of the source and the sink: parsed, checked and named wrongly in one place.

Spark hands over option names in lower case, and people write them in both styles; so underscores and case are ignored:
``maxBytesPerTrigger`` is ``max_bytes_per_trigger``. Source: docs/spark.md.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidNameError
from penstock.model.names import StreamName, check_name
from penstock.ports.controller_service import LEASE_MAX_MS, LEASE_MIN_MS
from penstock.spark.schema import EVENT, ROUTING_KEY

CutChoice: TypeAlias = Literal["earliest", "latest", "unbounded"] | StreamCut

DEFAULT_CONTROLLER = "localhost:9090"

READ_OPTIONS = (
    "controller",
    "scope",
    "stream",
    "path",
    "start_stream_cut",
    "end_stream_cut",
    "subscriber",
    "max_bytes_per_trigger",
    "max_events_per_trigger",
    "target_partition_bytes",
    "min_partitions",
    "batch_rows",
    "columns",
    "fail_on_data_loss",
    "direct",
    "lease_seconds",
)
WRITE_OPTIONS = (
    "controller",
    "scope",
    "stream",
    "path",
    "writer_id",
    "reset_writer",
    "txnAppId",
    "txnVersion",
    "event_column",
    "routing_key_column",
    "transaction_timeout_ms",
    "allow_create_scope",
    "allow_create_stream",
    "default_num_segments",
)
# What Spark itself adds, whatever the format: to queries, and to tables of a catalog (CREATE TABLE ... USING penstock).
_SPARKS_OWN = frozenset(
    {"path", "paths", "queryname", "checkpointlocation"}
    | {"provider", "owner", "location", "external", "comment", "collation", "ismanagedlocation", "tabletype"}
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)\Z", re.IGNORECASE)
# One letter as Spark and Java mean it; two and three as our command line does.
_UNITS = (
    {"": 1, "b": 1}
    | {letter: 1 << 10 * power for power, letter in enumerate("kmgt", 1)}
    | {f"{letter}ib": 1 << 10 * power for power, letter in enumerate("kmgt", 1)}
    | {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read, and in which portions. Sizes in bytes; None is "not said"."""

    controller: str
    stream: StreamName
    start: CutChoice | None
    end: CutChoice | None
    subscriber: str | None
    bytes_per_trigger: int | None
    events_per_trigger: int | None
    target_partition_bytes: int
    min_partitions: int
    batch_rows: int
    columns: tuple[str, ...] | None
    fail_on_data_loss: bool
    direct: bool
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where to write, and under which identity. ``job`` is a batch job's own (application, version)."""

    controller: str
    stream: StreamName
    writer_id: str | None
    reset_writer: bool
    job: tuple[str, int] | None
    event_column: str
    routing_key_column: str
    lease_ms: int
    create_scope: bool
    create_stream: bool
    segments: int


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """Options of a read. Raises InvalidArgumentError and InvalidNameError, each naming the option and what it may be."""
    given = _Given(options, READ_OPTIONS)
    stream = given.stream()
    return ReadOptions(
        controller=given.text("controller") or DEFAULT_CONTROLLER,
        stream=stream,
        start=given.cut("start_stream_cut", stream),
        end=given.cut("end_stream_cut", stream),
        subscriber=given.group("subscriber"),
        bytes_per_trigger=given.size("max_bytes_per_trigger", None),
        events_per_trigger=given.number("max_events_per_trigger", None),
        target_partition_bytes=given.size("target_partition_bytes", 128 << 20) or 1,
        min_partitions=given.number("min_partitions", 1) or 1,
        batch_rows=given.number("batch_rows", 10_000) or 1,
        columns=given.words("columns"),
        fail_on_data_loss=given.flag("fail_on_data_loss", True),
        direct=given.flag("direct", True),
        # Long enough for a stage to reach its last task; tasks extend it when half of it has gone.
        lease_ms=(given.number("lease_seconds", 1800) or 1) * 1000,
    )


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Options of a write. Raises as ``parse_read``."""
    given = _Given(options, WRITE_OPTIONS)
    lease_ms = given.number("transaction_timeout_ms", LEASE_MAX_MS) or 0
    if not LEASE_MIN_MS <= lease_ms <= LEASE_MAX_MS:
        raise InvalidArgumentError(
            f"option transaction_timeout_ms takes {LEASE_MIN_MS} to {LEASE_MAX_MS}", transaction_timeout_ms=lease_ms
        )
    app, version = given.text("txnAppId"), given.text("txnVersion")
    if (app is None) != (version is None):
        raise InvalidArgumentError("options txnAppId and txnVersion belong together", txnAppId=app, txnVersion=version)
    if version is not None and not version.isdecimal():
        raise InvalidArgumentError("option txnVersion is a number from 0 up", txnVersion=version)
    if app is not None and given.text("writer_id") is not None:
        raise InvalidArgumentError("option txnAppId names the writer already; drop writer_id", txnAppId=app)
    return WriteOptions(
        controller=given.text("controller") or DEFAULT_CONTROLLER,
        stream=given.stream(),
        writer_id=given.text("writer_id"),
        reset_writer=given.flag("reset_writer", False),
        job=None if app is None or version is None else (app, int(version)),
        event_column=given.text("event_column") or EVENT,
        routing_key_column=given.text("routing_key_column") or ROUTING_KEY,
        lease_ms=lease_ms,
        create_scope=given.flag("allow_create_scope", True),
        create_stream=given.flag("allow_create_stream", True),
        segments=given.number("default_num_segments", 1) or 1,
    )


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


class _Given:
    """The options as given, looked up by our own spelling."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        spellings = {_plain(name): name for name in known}
        self._values: dict[str, str] = {}
        for name, value in options.items():
            plain = _plain(name)
            if plain in spellings:
                if self._values.get(plain, value) != value:
                    raise InvalidArgumentError("option is given twice, differently", option=spellings[plain])
                self._values[plain] = value
            elif plain not in _SPARKS_OWN and not plain.startswith("option."):
                raise InvalidArgumentError(_unknown(plain, spellings), option=name)
        if "paths" in options:
            raise InvalidArgumentError("one read takes one stream; union several reads", paths=options["paths"])

    def text(self, name: str) -> str | None:
        """The value without blanks around it; None where absent or blank."""
        return self._values.get(_plain(name), "").strip() or None

    def number(self, name: str, default: int | None) -> int | None:
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]+", text) or int(text) == 0:
            raise InvalidArgumentError(f"option {name} is a whole number from 1 up", value=text)
        return int(text)

    def size(self, name: str, default: int | None) -> int | None:
        """Bytes, at least one: ``1000``; ``64m`` and ``64MiB`` are powers of 1024, ``64MB`` of 1000."""
        text = self.text(name)
        if text is None:
            return default
        match = _SIZE.match(text)
        unit = _UNITS.get(match[2].lower()) if match else None
        size_bytes = 0 if match is None or unit is None else round(Fraction(match[1]) * unit)
        if size_bytes < 1:
            raise InvalidArgumentError(f"option {name} is a size from 1 up, as 1000, 64m, 64MiB or 10MB", value=text)
        return size_bytes

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidArgumentError(f"option {name} is true or false", value=text)
        return text.lower() == "true"

    def words(self, name: str) -> tuple[str, ...] | None:
        text = self.text(name)
        return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())

    def group(self, name: str) -> str | None:
        text = self.text(name)
        return None if text is None else check_name("stream", text)

    def stream(self) -> StreamName:
        """From ``scope`` and ``stream``, or from ``path`` or ``stream`` as SCOPE/STREAM."""
        scope, stream, path = self.text("scope"), self.text("stream"), self.text("path")
        if stream is not None and "/" not in stream and scope is not None:
            stream = f"{scope}/{stream}"
        full = stream or path
        if full is None:
            raise InvalidArgumentError("which stream? give options scope and stream, or load('SCOPE/STREAM')")
        if stream is not None and path is not None and stream != path:
            raise InvalidArgumentError("options name two streams", stream=stream, path=path)
        try:
            name = StreamName.parse(full).checked()
        except InvalidNameError as error:
            raise InvalidNameError(f"option stream: {error.message}", **error.fields) from None
        if scope is not None and scope != name.scope:
            raise InvalidArgumentError("options name two scopes", scope=scope, stream=name)
        return name

    def cut(self, name: str, stream: StreamName) -> CutChoice | None:
        text = self.text(name)
        if text is None:
            return None
        match text.lower():
            case "earliest":
                return "earliest"
            case "latest":
                return "latest"
            case "unbounded":
                return "unbounded"
        cut = StreamCut.from_text(text)
        if cut.stream != stream:
            raise InvalidArgumentError(f"option {name} is a cut of another stream", stream=stream, cut=cut.stream)
        return "unbounded" if cut.is_unbounded else cut


def _unknown(plain: str, spellings: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(plain, spellings, n=1, cutoff=0.5)
    hint = f"did you mean {spellings[near[0]]}?" if near else "see docs/spark.md"
    return f"there is no such option; {hint}"
