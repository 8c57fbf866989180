"""Erase every event that matches: executors search, the store blanks. Source: docs/how-to/erasure.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from penstock.codec.answers import as_json
from penstock.core.cases.matching import check_can_match
from penstock.core.segments.erasure_receipt import NOT_EXAMINED, NOT_SEEN
from penstock.model.answers.erasure import Erasure
from penstock.model.cuts import StreamCut
from penstock.model.errors import AlreadyExistsError, ErasureDeferredError, NotFoundError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.spark.matching import Match, Where, matching_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.client.blocking.stores import Store

Progress = Callable[[Mapping[str, Any]], None]
_COLUMNS = ("segment_id", "offset", "examined")
_POSITIONS = "segment_id bigint, offset bigint, examined boolean"
_LISTED_MAX = 10  # positions of events that could not be examined, in a receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseReport:
    """The result of a run.

    ``state``: ``dry run``; ``done``, with a receipt even if nothing matched; or ``deferred``: holds cover some of the
    events, so nothing is blanked until they end, and the call can be repeated with the id in ``erasure``. ``holds``: those
    that defer the erasure or, in a dry run, would; each with ``hold``, ``owner``, ``reason``, ``until_ms``. ``start`` and
    ``end`` are the cuts between which events were searched. If some events between them could not be examined,
    ``looked_for`` has ``not_examined``: how many ``events``, and the ``first`` of them as ``SEGMENT:OFFSET``.
    """

    erasure: str | None
    stream: str
    state: str
    events: int
    bytes: int
    start: str
    end: str
    looked_for: Mapping[str, Any]
    receipt: Mapping[str, Any] | None = None
    holds: Sequence[Mapping[str, Any]] = ()

    @property
    def not_examined(self) -> int:
        """Events that could not be searched: nobody knows whether they match, and they are not erased."""
        return int(dict(self.looked_for.get(NOT_EXAMINED) or {}).get("events", 0))

    def as_json(self) -> dict[str, Any]:
        return {
            "erasure": self.erasure,
            "stream": self.stream,
            "state": self.state,
            "events": self.events,
            "bytes": self.bytes,
            "from": self.start,
            "to": self.end,
            "looked_for": dict(self.looked_for),
            "holds": [dict(item) for item in self.holds],
            "receipt": None if self.receipt is None else dict(self.receipt),
        }


def erase(
    spark: SparkSession,
    stream: str,
    match: Match,
    *,
    controller: str,
    who: str,
    why: str,
    erasure: str | None = None,
    dry_run: bool = False,
    confirm: Callable[[Mapping[str, Any]], None] | None = None,
    progress: Progress | None = None,
) -> EraseReport:
    """Blank all events of ``scope/stream`` that match, from its head to its current tail, and return the receipt.

    ``confirm`` is called with the ``events`` and ``bytes`` to blank, when they are known and before anything is
    decided. If it raises, the call ends with that error and nothing is changed.

    If holds cover some of the events, the state of the report is ``deferred``: the erasure is recorded, blanks nothing
    until they end, and continues without another call. If the id belongs to a decided or deferred erasure, there is no
    search: the call waits for that erasure and returns its receipt, or reports that it is still deferred.

    Raises AlreadyExistsError (the id belongs to an erasure with another stream, ``who``, ``why`` or search),
    InvalidArgumentError (the search can find nothing), ErasureWithdrawnError, what ``Stream.erase`` raises except
    ErasureDeferredError, and Spark's errors for a schema or a predicate that it cannot parse.
    """
    import penstock

    if not isinstance(match, Where):
        check_can_match(match)
    on_progress = progress or (lambda _: None)
    asked = {"erasure": erasure, "stream": stream, "who": who, "why": why}
    with penstock.connect(controller) as store:
        target = store.stream(stream)
        if erasure is not None and not dry_run:
            known = _known(store, erasure)
            if known is not None:
                return _repeated(store, known, asked, match)
        start, end = target.head(), target.tail()
        on_progress({"state": "looking", "bytes": target.describe().size_bytes})
        positions, unknown = _positions(spark, match, controller, target.name, start, end)
        on_progress({"state": "found", "found": sum(map(len, positions.values()))})
        looked_for = {**match.looked_for(), "from": start.to_text(), "to": end.to_text(), **_not_examined(unknown)}
        if confirm is not None and not dry_run:
            confirm(target.erase(positions, who=who, why=why, looked_for=looked_for, dry_run=True))
        try:
            ask = partial(target.erase, positions, who=who, why=why, erasure=erasure, looked_for=looked_for)
            found = ask(dry_run=dry_run, progress=on_progress)
        except ErasureDeferredError as error:
            return _deferred(store.erasures().show(error.fields["erasure"]))
        except AlreadyExistsError:
            # Another run of this search decided first, for another tail, or with events that this run no longer finds.
            known = _known(store, str(erasure))
            if known is None:
                raise
            return _repeated(store, known, asked, match)
    return _dry(stream, erasure, found, looked_for) if dry_run else _done(found)


def _dry(stream: str, erasure: str | None, found: Mapping[str, Any], looked_for: Mapping[str, Any]) -> EraseReport:
    """What an erasure would blank."""
    return EraseReport(
        erasure=erasure,
        stream=stream,
        state="dry run",
        events=found["events"],
        bytes=found["bytes"],
        start=looked_for["from"],
        end=looked_for["to"],
        looked_for=looked_for,
        holds=found["holds"],
    )


def _positions(
    spark: SparkSession, match: Match, controller: str, stream: StreamName, start: StreamCut, end: StreamCut
) -> tuple[dict[SegmentId, list[int]], list[tuple[int, int]]]:
    """The offsets at which the matching events begin, by segment; and the positions of those that cannot be searched."""
    options = {
        "controller": controller,
        "scope": stream.scope,
        "stream": stream.stream,
        "start_stream_cut": start.to_text(),
        "end_stream_cut": end.to_text(),
        "columns": "event,segment_id,offset",
    }
    frame = spark.read.format("penstock").options(**options).load()
    found: dict[SegmentId, list[int]] = {}
    unknown: list[tuple[int, int]] = []
    # All tasks at once: an iterator over the rows would run them one after another.
    for batch in matches_of(frame, match).toArrow().to_batches():
        for segment, offset, examined in zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True):
            if examined:
                found.setdefault(SegmentId(segment), []).append(offset)
            else:
                unknown.append((segment, offset))
    return found, unknown


def _not_examined(unknown: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The field of the search about events that could not be searched; none if there are none."""
    if not unknown:
        return {}
    first = [f"{segment}:{offset}" for segment, offset in sorted(unknown)[:_LISTED_MAX]]
    return {NOT_EXAMINED: {"events": len(unknown), "first": first}}


def _known(store: Store, erasure: str) -> Erasure | None:
    """The state of the erasure with this id. None if it does not exist or is not decided yet."""
    try:
        found = store.erasures().show(erasure)
    except NotFoundError:
        return None
    return None if found.state in ("gathering", "requested") else found


def _repeated(store: Store, known: Erasure, asked: Mapping[str, Any], match: Match) -> EraseReport:
    """The receipt of the decided erasure, or a report that it is deferred. Raises ErasureWithdrawnError.

    Raises AlreadyExistsError if the request differs, because the receipt of another request would be misleading.
    """
    erasure = str(asked["erasure"])
    if known.stream != asked["stream"]:
        raise AlreadyExistsError(
            "this id belongs to an erasure of another stream", erasure=erasure, stream=known.stream
        )
    found = known.asked
    # Compare without the cuts, which only describe that run, and without the notes on the search.
    if _searched(found.get("looked_for") or {}) != _searched(match.looked_for()):
        raise AlreadyExistsError(
            "this id belongs to an erasure that looked for something else; give another id, or none", erasure=erasure
        )
    for name in ("who", "why"):
        if found.get(name) != asked[name]:
            raise AlreadyExistsError(
                "this id belongs to an erasure with another owner or reason; give the same ones, another id, or none",
                erasure=erasure,
                **{name: found.get(name)},
            )
    if known.deferred is not UNSET:
        return _deferred(known)
    return _done(known.receipt or store.erasures().wait(erasure))


def _searched(looked_for: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in looked_for.items() if name not in ("from", "to", NOT_SEEN, NOT_EXAMINED)}


def _deferred(state: Erasure) -> EraseReport:
    """The report that holds defer the erasure. The number of its events is known, the number of bytes is not."""
    looked_for = state.asked["looked_for"]
    return EraseReport(
        erasure=state.erasure,
        stream=state.stream,
        state="deferred",
        events=0 if state.request is None else state.request.events,
        bytes=0,
        start=str(looked_for.get("from", "")),
        end=str(looked_for.get("to", "")),
        looked_for=looked_for,
        holds=() if state.deferred is UNSET else [as_json(item) for item in state.deferred.holds],
    )


def _done(receipt: Mapping[str, Any]) -> EraseReport:
    return EraseReport(
        erasure=receipt["erasure"],
        stream=receipt["stream"],
        state="done",
        events=receipt["where"]["events"],
        bytes=receipt["where"]["bytes"],
        start=str(receipt["looked_for"].get("from", "")),
        end=str(receipt["looked_for"].get("to", "")),
        looked_for=receipt["looked_for"],
        receipt=receipt,
    )


def matches_of(frame: DataFrame, match: Match) -> DataFrame:
    """Positions of the events that match, with ``examined``: see ``matching_batches``."""
    if isinstance(match, Where):
        from pyspark.sql.functions import col, expr, from_json, json_object_keys, lit

        text = col("event").cast("string")
        read = from_json(text, match.schema)
        # A payload that is not a JSON object is read as all nulls, so that "user is null" would match it.
        parsed = frame.where(json_object_keys(text).isNotNull()).select(
            read.alias("payload"), col("segment_id").alias("__segment"), col("offset").alias("__offset")
        )
        flat = parsed.select("payload.*", "__segment", "__offset")
        return flat.where(expr(match.where)).select(
            col("__segment").alias("segment_id"), col("__offset").alias("offset"), lit(True).alias("examined")
        )
    work = partial(matching_batches, match)
    return frame.select("event", "segment_id", "offset").mapInArrow(work, _POSITIONS)
