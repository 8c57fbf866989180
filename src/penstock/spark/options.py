"""Options of the source and the sink: parsed and checked in one place.

Spark hands over option names in lower case, and people write them in both styles; so underscores and case are ignored:
``maxBytesPerTrigger`` is ``max_bytes_per_trigger``. Source: docs/reference/spark.md.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

from penstock.model.cuts import ENDS, StreamCut
from penstock.model.errors import InternalError, InvalidArgumentError, InvalidCutError, InvalidNameError
from penstock.model.names import StreamName, check_name
from penstock.model.queries import ANY_QUERY
from penstock.ports.control.transactions import LEASE_MAX_MS, LEASE_MIN_MS
from penstock.spark.choice import WHICH_STREAM, Matching, Named, StreamChoice, all_named, checked_pattern, name_of
from penstock.spark.kafka import kafka_hint
from penstock.spark.option_values import TOKEN_S, PlainEvents, plain_events, reads_records, size_of, token_seconds
from penstock.spark.schema import EVENT, ROUTING_KEY


@dataclass(frozen=True, slots=True)
class Moment:
    """A time as a place in a stream, in milliseconds since the Unix epoch."""

    time_ms: int


CutChoice: TypeAlias = Literal["earliest", "latest", "unbounded"] | StreamCut | Moment

_APPLICATION_MAX_BYTES = 200
_LONG_MAX = (1 << 63) - 1  # largest Java long
_DIGITS = 20
"""Longer numbers are refused before they are converted, because no option takes them."""
_BATCH_ROWS_MAX = 1 << 24
_PARTITIONS_MAX = 1 << 20  # partitions of one batch
_LEASE_SECONDS_MAX = 10**9
_SEGMENTS_MAX = (1 << 31) - 1
_STREAMS_MAX = 10_000  # streams of one batch
Direct: TypeAlias = Literal["true", "false", "always"]
"""Read chunks where they lie: where that is possible, never, or else fail."""

DEFAULT_CONTROLLER = "localhost:9090"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

READ_OPTIONS = (
    "controller",
    "scope",
    "stream",
    "stream_pattern",
    "path",
    "start_stream_cut",
    "end_stream_cut",
    "start_timestamp",
    "end_timestamp",
    "subscriber",
    "replaces_query",
    "max_bytes_per_trigger",
    "max_events_per_trigger",
    "target_partition_bytes",
    "min_partitions",
    "batch_rows",
    "columns",
    "event_format",
    "plain_events",
    "fail_on_data_loss",
    "direct",
    "lease_seconds",
    "token_seconds",
    "application",
)
NO_QUERY = "none"
"""As ``txnQuery``: the job is not written in ``foreachBatch``."""

WRITE_OPTIONS = (
    "controller",
    "scope",
    "stream",
    "path",
    "writer_id",
    "reset_writer",
    "replaces_query",
    "txnAppId",
    "txnVersion",
    "txnQuery",
    "event_column",
    "routing_key_column",
    "event_format",
    "direct",
    "transaction_timeout_ms",
    "token_seconds",
    "allow_create_scope",
    "allow_create_stream",
    "default_num_segments",
    "max_streams",
)
# What Spark itself adds, whatever the format: to queries, and to tables of a catalog (CREATE TABLE ... USING penstock).
_SPARKS_OWN = frozenset(
    {"path", "paths", "queryname", "checkpointlocation"}
    | {"provider", "owner", "location", "external", "comment", "collation", "ismanagedlocation", "tabletype"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read, and in which portions. Sizes in bytes; None is "not said"."""

    controller: str
    choice: StreamChoice
    start: CutChoice | None
    end: CutChoice | None
    subscriber: str | None
    replaces_query: str | None
    bytes_per_trigger: int | None
    events_per_trigger: int | None
    target_partition_bytes: int
    min_partitions: int
    batch_rows: int
    columns: tuple[str, ...] | None
    fail_on_data_loss: bool
    direct: bool
    only_direct: bool
    lease_ms: int
    application: str | None
    records: bool = False
    plain_events: PlainEvents = "fail"
    token_s: int = TOKEN_S

    @property
    def is_of_one(self) -> bool:
        """Whether the read is of one stream, given by name. Its offsets have the form that they always had."""
        return isinstance(self.choice, Named) and len(self.choice.streams) == 1

    @property
    def stream(self) -> StreamName:
        """The stream of a read of one. Raises InternalError for a read of several: see ``of``."""
        if not (isinstance(self.choice, Named) and len(self.choice.streams) == 1):
            raise InternalError("a read of several streams was taken for one of one stream", choice=self.choice)
        return self.choice.streams[0]

    def of(self, stream: StreamName) -> ReadOptions:
        """The same options for one of the streams."""
        return replace(self, choice=Named((stream,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where to write, and under which identity. ``job`` is a batch job's own (application, version).

    ``target``: None if each row names its stream; then ``scope`` is that of rows that name none, and ``max_streams``
    limits the streams of one batch. ``job_query``: a name of the query whose ``foreachBatch`` writes the job, or
    ``NO_QUERY``; None: as Spark says.
    """

    controller: str
    target: StreamName | None
    scope: str | None
    max_streams: int
    writer_id: str | None
    reset_writer: bool
    replaces_query: str | None
    job: tuple[str, int] | None
    job_query: str | None
    event_column: str
    routing_key_column: str
    direct: bool
    lease_ms: int
    create_scope: bool
    create_stream: bool
    segments: int
    records: bool = False
    token_s: int = TOKEN_S

    @property
    def stream(self) -> StreamName:
        """The target. Raises InternalError where each row names its own: see ``of``."""
        if self.target is None:
            raise InternalError("a write to several streams was taken for one to one stream", scope=self.scope)
        return self.target

    def of(self, stream: StreamName) -> WriteOptions:
        """The same options for one of the streams."""
        return self if stream == self.target else replace(self, target=stream)


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """Options of a read of one stream. Raises InvalidArgumentError and InvalidNameError, each naming the option and what it
    may be."""
    given = _Given(options, READ_OPTIONS, WRITE_OPTIONS, "writing")
    return _read_options(given, Named((given.stream(own=True),)))


def parse_source(options: Mapping[str, str]) -> ReadOptions:
    """As ``parse_read``, for a read of one stream or several: see ``_Given.choice``."""
    given = _Given(options, READ_OPTIONS, WRITE_OPTIONS, "writing")
    return _read_options(given, given.choice())


def _read_options(given: _Given, choice: StreamChoice) -> ReadOptions:
    start = given.place("start_stream_cut", "start_timestamp", choice)
    end = given.place("end_stream_cut", "end_timestamp", choice)
    if isinstance(start, Moment) and isinstance(end, Moment) and start.time_ms > end.time_ms:
        raise InvalidArgumentError(
            "the time range ends before it begins",
            start_timestamp=given.text("start_timestamp"),
            end_timestamp=given.text("end_timestamp"),
        )
    return ReadOptions(
        controller=given.text("controller") or DEFAULT_CONTROLLER,
        choice=choice,
        start=start,
        end=end,
        subscriber=given.group("subscriber"),
        replaces_query=given.text("replaces_query"),
        bytes_per_trigger=given.size("max_bytes_per_trigger", None),
        events_per_trigger=given.number("max_events_per_trigger", None),
        target_partition_bytes=given.size("target_partition_bytes", 128 << 20) or 1,
        min_partitions=given.number("min_partitions", 1, _PARTITIONS_MAX) or 1,
        batch_rows=given.number("batch_rows", 10_000, _BATCH_ROWS_MAX) or 1,
        columns=given.words("columns"),
        fail_on_data_loss=given.flag("fail_on_data_loss", True),
        direct=given.direct("direct") != "false",
        only_direct=given.direct("direct") == "always",
        # Long enough for a stage to reach its last task; tasks extend it when half of it has gone.
        lease_ms=(given.number("lease_seconds", 1800, _LEASE_SECONDS_MAX) or 1) * 1000,
        application=given.words_of_holder("application"),
        records=reads_records(given.text),
        plain_events=plain_events(given.text),
        token_s=token_seconds(given.text),
    )


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Options of a write to one stream. Raises as ``parse_read``."""
    given = _Given(options, WRITE_OPTIONS, READ_OPTIONS, "reading")
    return _write_options(given, given.stream())


def parse_sink(options: Mapping[str, str]) -> WriteOptions:
    """As ``parse_write``, also for a write without a target, in which each row names its stream."""
    given = _Given(options, WRITE_OPTIONS, READ_OPTIONS, "reading")
    return _write_options(given, given.stream() if given.text("stream") or given.text("path") else None)


def _write_options(given: _Given, target: StreamName | None) -> WriteOptions:
    if target is not None and given.text("max_streams") is not None:
        raise InvalidArgumentError("option max_streams belongs to rows that name their streams; drop it", stream=target)
    lease_ms = given.number("transaction_timeout_ms", LEASE_MAX_MS) or 0
    if not LEASE_MIN_MS <= lease_ms <= LEASE_MAX_MS:
        raise InvalidArgumentError(
            f"option transaction_timeout_ms takes {LEASE_MIN_MS} to {LEASE_MAX_MS}", transaction_timeout_ms=lease_ms
        )
    app, version = given.text("txnAppId"), given.text("txnVersion")
    if (app is None) != (version is None):
        raise InvalidArgumentError("options txnAppId and txnVersion belong together", txnAppId=app, txnVersion=version)
    if version is not None and not (re.fullmatch(r"[0-9]{1,19}", version) and int(version) <= _LONG_MAX):
        raise InvalidArgumentError(
            f"option txnVersion must be a whole number from 0 to {_LONG_MAX}", txnVersion=version[:40]
        )
    query = given.text("txnQuery")
    if query is not None and app is None:
        raise InvalidArgumentError("option txnQuery belongs to txnAppId", txnQuery=query[:80])
    if app is not None and given.text("writer_id") is not None:
        raise InvalidArgumentError("option txnAppId names the writer already; drop writer_id", txnAppId=app)
    reset = given.flag("reset_writer", False)
    if app is not None and reset:
        raise InvalidArgumentError(
            "option reset_writer belongs to writer_id and does nothing for txnAppId; use another txnAppId", txnAppId=app
        )
    replaces = given.text("replaces_query")
    if replaces == ANY_QUERY:
        raise InvalidArgumentError(
            "option replaces_query takes any for subscribers only; to take a writer's name over, give the id of the query "
            "that owns it, or unknown if none does",
            replaces_query=replaces,
        )
    return WriteOptions(
        controller=given.text("controller") or DEFAULT_CONTROLLER,
        target=target,
        scope=given.scope() if target is None else target.scope,
        max_streams=given.number("max_streams", 100, _STREAMS_MAX) or 1,
        writer_id=given.text("writer_id"),
        reset_writer=reset,
        replaces_query=replaces,
        job=None if app is None or version is None else (app, int(version)),
        job_query=query,
        event_column=given.text("event_column") or EVENT,
        routing_key_column=given.text("routing_key_column") or ROUTING_KEY,
        direct=given.flag("direct", True),
        lease_ms=lease_ms,
        # A bad value in a row must not create a stream by default.
        create_scope=given.flag("allow_create_scope", target is not None),
        create_stream=given.flag("allow_create_stream", target is not None),
        segments=given.number("default_num_segments", 1, _SEGMENTS_MAX) or 1,
        records=reads_records(given.text),
        token_s=token_seconds(given.text),
    )


def plain_name(name: str) -> str:
    """The normalized name of an option."""
    return name.lower().replace("_", "")


class _Given:
    """The options as given, looked up by our own spelling."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str], others: Iterable[str], theirs: str) -> None:
        spellings = {plain_name(name): name for name in known}
        elsewhere = {plain_name(name): name for name in others}
        self._values: dict[str, str] = {}
        for name, value in options.items():
            plain = plain_name(name)
            if plain in spellings:
                if self._values.get(plain, value) != value:
                    raise InvalidArgumentError("option is given twice, differently", option=spellings[plain])
                self._values[plain] = value
            elif plain not in _SPARKS_OWN and not plain.startswith("option."):
                if plain in elsewhere:
                    raise InvalidArgumentError(f"option {elsewhere[plain]} is only for {theirs}", option=name)
                raise InvalidArgumentError(kafka_hint(plain, spellings) or _unknown(plain, spellings), option=name)
        if "paths" in options:
            raise InvalidArgumentError(
                "load takes one path; name several streams in option stream, separated by commas",
                paths=options["paths"],
            )

    def text(self, name: str) -> str | None:
        """The value without blanks around it; None where absent or blank."""
        return self._values.get(plain_name(name), "").strip() or None

    def number(self, name: str, default: int | None, most: int = _LONG_MAX) -> int | None:
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]+", text) or not text.strip("0"):
            raise InvalidArgumentError(f"option {name} must be a whole number of at least 1", value=text[:40])
        return _within(name, text, int(text) if len(text) < _DIGITS else most + 1, most)

    def size(self, name: str, default: int | None) -> int | None:
        """Bytes, at least one: ``1000``; ``64m`` and ``64MiB`` are powers of 1024, ``64MB`` of 1000."""
        text = self.text(name)
        if text is None:
            return default
        return _within(name, text, size_of(name, text), _LONG_MAX)

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidArgumentError(f"option {name} must be true or false", value=text)
        return text.lower() == "true"

    def words(self, name: str) -> tuple[str, ...] | None:
        text = self.text(name)
        return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())

    def direct(self, name: str) -> Direct:
        text = (self.text(name) or "true").lower()
        match text:
            case "true" | "false" | "always":
                return text
        raise InvalidArgumentError(f"option {name} must be true, false or always", value=text)

    def words_of_holder(self, name: str) -> str | None:
        text = self.text(name)
        if text is not None and len(text.encode()) > _APPLICATION_MAX_BYTES:
            raise InvalidArgumentError(f"option {name} must not exceed {_APPLICATION_MAX_BYTES} bytes", value=text[:40])
        return text

    def group(self, name: str) -> str | None:
        text = self.text(name)
        return None if text is None else check_name("subscriber", text)

    def stream(self, *, own: bool = False) -> StreamName:
        """From ``scope`` and ``stream``, or from ``path`` or ``stream`` as SCOPE/STREAM. ``own``: the audit stream, too."""
        scope, stream, path = self.text("scope"), self.text("stream"), self.text("path")
        if stream is not None and "/" not in stream and scope is not None:
            stream = f"{scope}/{stream}"
        full = stream or path
        if full is None:
            raise InvalidArgumentError(WHICH_STREAM)
        if stream is not None and path is not None and stream != path:
            raise InvalidArgumentError("options name two streams", stream=stream, path=path)
        if "," in full:
            raise InvalidArgumentError("exactly one stream can be read or written here; name one", stream=full[:80])
        return name_of(full, scope, own=own)

    def choice(self) -> StreamChoice:
        """What a source reads: ``stream`` or ``path`` with one name or several between commas, the streams that
        ``stream_pattern`` matches, or with ``scope`` alone all of its streams.

        Raises: InvalidArgumentError (no choice, or two; a name given twice; a pattern that is no regular expression),
        InvalidNameError.
        """
        scope, pattern = self.text("scope"), self.text("stream_pattern")
        names = self.text("stream") or self.text("path")
        if pattern is not None:
            if names is not None:
                raise InvalidArgumentError(
                    "options stream and stream_pattern both choose streams; drop one",
                    stream=names,
                    stream_pattern=pattern,
                )
            return Matching(scope=self.scope(), pattern=checked_pattern(pattern))
        if names is None:
            if scope is None:
                raise InvalidArgumentError(WHICH_STREAM)
            return Matching(scope=self.scope(), pattern=None)
        if "," not in names:
            return Named((self.stream(own=True),))
        if self.text("path") not in (None, names):
            raise InvalidArgumentError("options name two sets of streams", stream=names, path=self.text("path"))
        return Named(all_named(names, scope))

    def scope(self) -> str | None:
        scope = self.text("scope")
        try:
            return None if scope is None else check_name("scope", scope)
        except InvalidNameError as error:
            raise InvalidNameError(f"option scope: {error.message}", **error.fields) from None

    def place(self, cut: str, moment: str, choice: StreamChoice) -> CutChoice | None:
        """A position in the streams, given by a cut, if it is one stream, or by a time."""
        chosen, time_ms = self.cut(cut, choice), self.moment(moment)
        if chosen is not None and time_ms is not None:
            raise InvalidArgumentError(f"give option {cut} or {moment}, not both", value=self.text(moment))
        return chosen if time_ms is None else Moment(time_ms)

    def moment(self, name: str) -> int | None:
        """Milliseconds since the Unix epoch, from a number of them or from ISO 8601 (UTC if it has no offset)."""
        text = self.text(name)
        if text is None:
            return None
        if re.fullmatch(r"[0-9]{9,10}", text):
            raise InvalidArgumentError(
                f"option {name} is in milliseconds, and this value is in 1970; if it is in seconds, multiply by 1000",
                value=text,
            )
        if text == "0" or re.fullmatch(r"[0-9]{11,15}", text):
            return int(text)
        try:
            found = datetime.fromisoformat(text)
            found = found.replace(tzinfo=found.tzinfo or UTC)
            return max(0, (found - _EPOCH) // timedelta(milliseconds=1))
        except (ValueError, OverflowError):
            raise InvalidArgumentError(
                f"option {name} must be a time such as 2026-05-01T12:00:00Z, or in milliseconds since 1970", value=text
            ) from None

    def cut(self, name: str, choice: StreamChoice) -> CutChoice | None:
        text = self.text(name)
        if text is None:
            return None
        match ENDS.get(text.lower(), text.lower()):
            case "head":
                return "earliest"
            case "tail":
                return "latest"
            case "unbounded":
                return "unbounded"
        try:
            cut = StreamCut.from_text(text)
        except InvalidCutError as error:
            near = difflib.get_close_matches(text.lower(), _WORDS_OF_CUTS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidCutError(
                f"option {name} must be earliest, latest, unbounded or the text of a stream cut{hint}", value=text[:60]
            ) from error
        if not (isinstance(choice, Named) and len(choice.streams) == 1):
            raise InvalidArgumentError(
                f"option {name} is a cut of one stream, and several are read; use earliest, latest or a time",
                cut=cut.stream,
            )
        if cut.stream != choice.streams[0]:
            raise InvalidArgumentError(
                f"option {name} is a cut of another stream", stream=choice.streams[0], cut=cut.stream
            )
        return "unbounded" if cut.is_unbounded else cut


_WORDS_OF_CUTS = (*ENDS, "unbounded")


def _within(name: str, text: str, value: int, most: int) -> int:
    if value > most:
        raise InvalidArgumentError(f"option {name} must be at most {most}", value=text[:40])
    return value


def _unknown(plain: str, spellings: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(plain, spellings, n=1, cutoff=0.5)
    hint = f"did you mean {spellings[near[0]]}?" if near else "see docs/reference/spark.md"
    return f"there is no such option; {hint}"
