"""Which erasures are allowed, and what a receipt reports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import UNSET, convert

from penstock.codec.control.erasures import ErasurePartRecord, ErasureRecord
from penstock.codec.control.truncations import DeletedRecord, GraceState
from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.grace.deleted_records import load_deleted, placed_at
from penstock.controller.grace.records import load_grace
from penstock.controller.retention.facts import load_subscribers
from penstock.controller.retention.holds import Placed
from penstock.controller.stream_view import StreamView
from penstock.core.segments.erasure import Range, joined, size_of
from penstock.core.segments.erasure_receipt import (
    BY_POSITIONS,
    canonical,
    digest_of,
    plain,
    positions_digest,
    ranges_digest,
    request_digest,
)
from penstock.core.streams.history import StreamHistory
from penstock.core.streams.query_source import TABLE_PREFIX
from penstock.model.answers.erasure import (
    Erasure,
    ErasureDeferral,
    ErasureDigest,
    ErasureHold,
    ErasureWithdrawal,
)
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.erasing import ErasedChunk
from penstock.ports.data.tables import VALUE_MAX_BYTES

ID_MAX = 64  # characters; the id is part of keys and of receipts
PAGE_POSITIONS_MAX = 50_000  # positions of one call, so that their records fit in the table
TEXT_MAX = 1024  # characters of who and why
_WHAT_MAX_BYTES = 64 << 10
_RECEIPT_REST_BYTES = 64 << 10
"""Upper bound of the receipt's fields whose size is not known when the erasure is decided."""
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


def answer_of(erasure: str, record: ErasureRecord, attempts: Mapping[str, Any]) -> Erasure:
    """How an erasure stands, without its tables. ``attempts``: the fields of one that is being performed."""
    deferral = record.deferred
    return Erasure(
        erasure=erasure,
        stream=record.stream,
        state="requested" if record.is_requested else record.state.value,
        asked=record.asked,
        asked_ms=record.asked_ms,
        request=None if record.request is None else convert(record.request, ErasureDigest),
        receipt=record.receipt,
        deferred=UNSET
        if deferral is None
        else ErasureDeferral(
            holds=convert(deferral.holds, list[ErasureHold]), count=deferral.count, since_ms=deferral.since_ms
        ),
        identity=UNSET if record.identity is None else record.identity,
        withdrawn=UNSET if record.withdrawn is None else convert(record.withdrawn, ErasureWithdrawal),
        **attempts,
    )


def where_of(parts: Sequence[ErasurePartRecord], gone: Sequence[SegmentId]) -> dict[str, Any]:
    found: dict[SegmentId, set[Range]] = {}
    for part in parts:
        found.setdefault(part.segment, set()).update(part.ranges)
    segments: list[dict[str, Any]] = []
    for segment, events in sorted(found.items()):
        ranges = joined(events)
        segments.append(
            {
                "segment": segment,
                "events": len(events),
                "bytes": size_of(ranges),
                "ranges": len(ranges),
                "ranges_sha256": ranges_digest(ranges),
                "gone": segment in gone,
            }
        )
    return {
        "events": sum(item["events"] for item in segments),
        "bytes": sum(item["bytes"] for item in segments),
        "segments": segments,
    }


def chunk_fields(segment: SegmentId, item: ErasedChunk) -> dict[str, Any]:
    return {
        "segment": segment,
        "replaced": item.name_before,
        "start": item.start_offset,
        "end": item.end_offset,
        "blanked_bytes": item.blanked_bytes,
        "sha256_before": item.before.hex(),
        "sha256_after": item.after.hex(),
        "sha256_kept": item.kept.hex(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a caller. ``asked`` is stored and returned: plain JSON. ``attempt`` is the caller's token for this
    run; ``events`` and ``positions_sha256`` define the complete set of its pages. ``of_case``: a case asks for it.
    ``identity``: the verified one of the caller, or of who opened the case; None: none was verified."""

    stream: StreamName
    asked: Mapping[str, Any]
    attempt: str
    events: int
    positions_sha256: str
    of_case: bool = False
    identity: str | None = None

    @property
    def erasure(self) -> str:
        return str(self.asked["erasure"])

    @property
    def digest(self) -> str:
        return request_digest(str(self.stream), self.asked, self.positions_sha256)

    def run(self, incarnation: int) -> str:
        """Key under which this run keeps its pages: no other run, request or incarnation of the stream shares it."""
        return digest_of([self.attempt, incarnation, self.digest])[:32]

    def fields(self) -> dict[str, Any]:
        """The fields that the record and the receipt hold."""
        return {"events": self.events, "positions_sha256": self.positions_sha256, "sha256": self.digest}


def checked_request(
    stream: StreamName, asked: Mapping[str, Any], positions: Mapping[SegmentId, Sequence[int]], *, is_whole: bool
) -> Request:
    """``is_whole``: these positions are all of the request. Raises InvalidArgumentError."""
    checked = checked_asked(stream, {name: value for name, value in asked.items() if name != "run"})
    run = asked.get("run")
    if run is None and is_whole:
        count, digest = positions_digest(positions)
        return Request(stream=stream, asked=checked, attempt="", events=count, positions_sha256=digest)
    try:
        attempt, events, digest = str(run["attempt"]), int(run["events"]), str(run["positions_sha256"])  # type: ignore[index]
    except (TypeError, LookupError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            "an erasure in several pages needs 'run' with 'attempt', 'events' and 'positions_sha256'", field="run"
        ) from error
    if not 0 < len(attempt) <= ID_MAX or not attempt.isprintable() or not _SHA256.match(digest):
        raise InvalidArgumentError("token or digest of a run is not legal", field="run")
    return Request(stream=stream, asked=checked, attempt=attempt, events=events, positions_sha256=digest)


def check_receipt_fits(decided: ErasureRecord, parts: Sequence[ErasurePartRecord]) -> None:
    """Raises InvalidArgumentError if the record with the receipt would be larger than a table value."""
    receipt = {"where": where_of(parts, ()), "asked": decided.asked, "request": decided.request}
    size_bytes = len(replace(decided, receipt=receipt).encode()) + _RECEIPT_REST_BYTES
    if size_bytes > VALUE_MAX_BYTES:
        raise InvalidArgumentError(
            "an erasure has too many segments for one receipt: split its positions by segment into several erasures",
            segments=len({part.segment for part in parts}),
            size_bytes=size_bytes,
            limit_bytes=VALUE_MAX_BYTES,
        )


def check_complete(request: Request, parts: Sequence[ErasurePartRecord]) -> None:
    """Raises InvalidArgumentError unless the pages hold exactly the positions of the request."""
    found: dict[SegmentId, list[int]] = {}
    for part in parts:
        found.setdefault(part.segment, []).extend(part.offsets)
    count, digest = positions_digest(found)
    if (count, digest) != (request.events, request.positions_sha256):
        raise InvalidArgumentError(
            "pages of positions are missing or differ; run the erasure again from its first page",
            erasure=request.erasure,
            events=count,
            expected=request.events,
        )


def check_positions(positions: Mapping[SegmentId, Sequence[int]]) -> None:
    """Raises InvalidArgumentError: there are too many for one call, or one is negative."""
    if sum(map(len, positions.values())) > PAGE_POSITIONS_MAX:
        raise InvalidArgumentError("a page of positions is too long", limit=PAGE_POSITIONS_MAX)
    for segment, offsets in positions.items():
        if min(offsets, default=0) < 0:
            raise InvalidArgumentError("offset is negative", segment=segment, offset=min(offsets))


def check_proves_something(request: Request) -> None:
    """Raises InvalidArgumentError: no positions, and no search that found none. Its receipt would prove nothing."""
    by = request.asked["looked_for"].get("by")
    if not request.events and by in (None, "", BY_POSITIONS):
        raise InvalidArgumentError(
            "an erasure without positions would prove nothing; give positions, or state the search that found none",
            field="positions",
            looked_for=canonical(request.asked["looked_for"]).decode()[:60],
        )


def check_text(message: str, **texts: object) -> None:
    """Raises InvalidArgumentError unless the values are printable text of a legal length."""
    for name, text in texts.items():
        if not isinstance(text, str) or not text.strip() or len(text) > TEXT_MAX or not text.isprintable():
            raise InvalidArgumentError(
                message, field=name, value=ascii(text)[:60], rule=f"1 to {TEXT_MAX} printable characters"
            )


def checked_asked(stream: StreamName, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The request as it is stored and returned: plain JSON. Raises InvalidArgumentError."""
    erasure = asked.get("erasure")
    if not isinstance(erasure, str) or len(erasure) > ID_MAX or not _ID.match(erasure):
        raise InvalidArgumentError(
            "id of an erasure is not legal",
            field="erasure",
            value=ascii(erasure)[:60],
            rule=f"1 to {ID_MAX} letters, digits, dots, dashes and underscores",
        )
    check_text("an erasure needs who and why", who=asked.get("who"), why=asked.get("why"))
    found = plain(asked, field="looked_for")
    if not isinstance(found.get("looked_for"), dict) or len(canonical(found)) > _WHAT_MAX_BYTES:
        raise InvalidArgumentError(
            "an erasure must state what was looked for", field="looked_for", rule="a JSON object of less than 64 KiB"
        )
    if stream.is_internal:
        raise InvalidArgumentError("events of an internal stream cannot be erased", stream=str(stream))
    return found


def ends_of(parts: Sequence[ErasurePartRecord]) -> dict[SegmentId, int]:
    """Where the last range of each segment ends. If a hold covers any range of a segment, it covers the last one."""
    found: dict[SegmentId, int] = {}
    for part in parts:
        if part.ranges:
            found[part.segment] = max(found.get(part.segment, 0), part.ranges[-1][1])
    return dict(sorted(found.items()))


def covering(history: StreamHistory, holds: Sequence[Placed], ends: Mapping[SegmentId, int]) -> list[Placed]:
    """The holds that cover some of the bytes to erase, which are before ``ends`` in each segment."""
    return [hold for hold in holds if any(hold.covers(history, segment, end) for segment, end in ends.items())]


def hold_fields(hold: Placed) -> dict[str, Any]:
    """A hold, as deferred erasures and dry runs report it."""
    record = hold.record
    return {"hold": hold.id, "owner": record.owner, "reason": record.reason, "until_ms": record.until_ms}


async def remains_of(
    ctx: Context, view: StreamView | None, stream: StreamName, incarnation: int, tables: Sequence[str]
) -> list[dict[str, Any]]:
    """What may still hold the bytes, why, and until when. ``view``: the stream, None if it was deleted. ``tables``: those
    that have copies of its events."""
    found: list[dict[str, Any]] = [
        {
            "what": "copies that others made: backups, snapshots of disks, versions kept by a bucket, "
            "parts of uploads to a bucket that were cut off, rows of jobs"
        }
    ]
    found += await _other_deleted(ctx, stream, incarnation)
    found += [
        {"what": "rows of a table, until penstock spark erase --tables deletes them", "table": name} for name in tables
    ]
    if view is None:
        return [*found, *await _remains_of_deleted(ctx, stream, incarnation)]
    transactions = [entry async for entry in ctx.metadata.scan_all(keys.transactions(stream))]
    if transactions:
        found.append(
            {
                "what": "events of transactions that were not merged: they are no events of the stream yet; "
                "ask again when they have ended",
                "transactions": len(transactions),
            }
        )
    kept = [entry async for entry in ctx.metadata.scan_all(keys.kept_transactions(stream))]
    if kept:
        found.append(
            {
                "what": "events of transactions whose records a repair removed: nobody knows whether they were committed; "
                "they are deleted with the stream",
                "transactions": len(kept),
            }
        )
    grace = await load_grace(ctx.metadata, stream)
    graced = [item for item in grace.values if item.state is GraceState.KEPT]
    if graced:
        found.append(
            {
                "what": "truncated bytes that can be restored until their grace ends",
                "bytes": sum(item.size_bytes for item in graced),
                "until_ms": max(item.due_ms for item in graced),
            }
        )
    spaces = await ctx.segments.spaces(await _segment_names(ctx, view))
    leased = [space for space in spaces.values() if space.leased_bytes]
    if leased:
        found.append(
            {
                "what": "truncated chunks that a reader has leased",
                "bytes": sum(space.leased_bytes for space in leased),
                "until_ms": max(space.leased_until_ms or 0 for space in leased),
            }
        )
    return found


async def tables_of(ctx: Context, view: StreamView) -> list[str]:
    """The tables that are subscribers of the stream, sorted. They have copies of its events."""
    records = await load_subscribers(ctx, view)
    return sorted(
        item.query.removeprefix(TABLE_PREFIX) for item in records.values() if item.query.startswith(TABLE_PREFIX)
    )


async def _segment_names(ctx: Context, view: StreamView) -> list[str]:
    history = await ctx.histories.of(view)
    return [segment_name(view.name, segment) for segment in history.index.ids]


async def _remains_of_deleted(ctx: Context, stream: StreamName, incarnation: int) -> list[dict[str, Any]]:
    """The same for a deleted stream. If it can be restored, an erasure blanks its events and nothing else."""
    deleted = (await load_deleted(ctx, stream, incarnation)).value
    place = placed_at(stream, incarnation)
    prefixes = (retention_keys.graces(stream), keys.transactions(stream), keys.kept_transactions(stream))
    rows = [entry for prefix in prefixes for entry in await ctx.metadata.scan(place(prefix), limit=1)]
    if deleted is None or not rows:
        return []
    what = "truncated bytes and unmerged transactions of the stream, which is deleted and can be restored"
    return [{"what": what, "until_ms": deleted.due_ms}]


async def _other_deleted(ctx: Context, stream: StreamName, incarnation: int) -> list[dict[str, Any]]:
    """Other deleted streams of the name that can be restored: they were not searched."""
    untils: list[int] = []
    async for entry in ctx.metadata.scan_all(retention_keys.deleted_in(str(stream))):
        record = ctx.set_aside.read(entry, DeletedRecord)
        if entry.key != retention_keys.deleted(stream, incarnation) and record is not None:
            untils.append(record.due_ms)
    what = "other deleted streams of this name, which can be restored: nothing was erased in them"
    return [{"what": what, "streams": len(untils), "until_ms": max(untils)}] if untils else []
