"""Between the messages of ``native.proto`` and our own values, both ways; shared by the server and the client side.

Functions named ``..._message`` make messages, the others read them. Reading checks: what a peer may not say raises
``InvalidArgumentError`` or a subclass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar, cast
from uuid import UUID

from penstock.codec.answers import S, as_json, from_json
from penstock.codec.control.policy_document import decode_document, encode_document
from penstock.model.answers.plan import RetentionRun
from penstock.model.cuts import StreamCut
from penstock.model.damage import Damage
from penstock.model.errors import CorruptDataError, InvalidArgumentError, ProtocolError
from penstock.model.names import StreamName
from penstock.model.policies import LONG_MAX
from penstock.model.queries import QuerySource
from penstock.model.retention import HoldInfo, PolicyDocument, PolicyTarget
from penstock.net.grpc.mapping import (
    config_message,
    config_of,
    cut_message,
    cut_of,
    make,
    range_message,
    ranges_of,
    segment_of,
    stream_of,
    uuid_of,
)
from penstock.net.proto import native_pb2 as native
from penstock.ports.control.cuts import SegmentSpan
from penstock.ports.control.streams import DeletedStream, RestoredStream, StreamDescription
from penstock.ports.control.subscribers import SubscriberInfo
from penstock.ports.control.transactions import EventBlock
from penstock.ports.data.chunks import ChunkBlock, ChunkRange, Lease
from penstock.ports.data.imports import ImportedChunk, ImportGrant
from penstock.ports.data.segments import SegmentInfo
from penstock.ports.data.space import DiskSpace, SegmentSpace
from penstock.ports.integrity import ScrubPage

M = TypeVar("M")
V = TypeVar("V")

_UNKNOWN = -1
"""Span of a block whose times nobody knows."""


def same_message(kind: Callable[..., M], item: Any, *, without: Container[str] = ()) -> M:
    """A message with the fields of a value, all of which it has by the same names but for those ``without``."""
    return make(kind, **{field.name: getattr(item, field.name) for field in fields(item) if field.name not in without})


def same_of(kind: Callable[..., V], message: Any, **others: Any) -> V:
    """The value that ``same_message`` made the message of; ``others`` are not in it. What the message lacks is None."""
    known: dict[str, Any] = {}
    for name, field in message.DESCRIPTOR.fields_by_name.items():
        known[name] = None if field.has_presence and not message.HasField(name) else getattr(message, name)
    return kind(**known, **others)


def query_source_message(source: QuerySource) -> native.QuerySource:
    return make(
        native.QuerySource,
        query=source.query,
        run=source.run,
        replaces=source.replaces,
        unordered=not source.ordered,
    )


def query_source_of(message: native.QuerySource) -> QuerySource:
    return QuerySource(query=message.query, run=message.run, replaces=message.replaces, ordered=not message.unordered)


def block_message(block: EventBlock) -> native.EventBlock:
    return make(
        native.EventBlock,
        segment=block.segment,
        writer=block.writer.bytes,
        events=block.event_count,
        data=bytes(block.data),
    )


def block_of(message: native.EventBlock) -> EventBlock:
    if len(message.writer) != 16:
        raise InvalidArgumentError("id of a writer has 16 bytes", size_bytes=len(message.writer))
    return EventBlock(
        segment=segment_of(message.segment),
        writer=UUID(bytes=message.writer),
        event_count=message.events,
        data=message.data,
    )


def json_of(text: str) -> Mapping[str, Any]:
    """The object that an answer holds. Raises InvalidArgumentError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError("not JSON", detail=str(error)[:200]) from error
    if not isinstance(value, dict):
        raise InvalidArgumentError("not a JSON object", value=text[:60])
    return value


def json_message(value: object) -> native.JsonAnswer:
    """The value, in which answers may be, as JSON."""
    return native.JsonAnswer(json=json.dumps(value, default=as_json))


def answer_of(kind: type[S], message: Any) -> S:
    """Inverse of ``json_message`` and ``decision_message``. Raises CorruptDataError."""
    return from_json(kind, json_of(message.json))


def document_message(document: PolicyDocument) -> native.JsonAnswer:
    return json_message(encode_document(document))


def document_of(text: str) -> PolicyDocument:
    return decode_document(dict(json_of(text)))


def decision_message(decision: RetentionRun) -> native.RetentionDecision:
    """The decision as it is, and beside it the fields that a reader without JSON wants most."""
    return native.RetentionDecision(
        json=json.dumps(decision, default=as_json),
        rule=decision.rule,
        why=decision.why,
        frees_bytes=decision.frees_bytes,
        truncate=None if decision.truncate is None else dict(decision.truncate),
    )


# --- targets and holds --------------------------------------------------------------------------------------------


def target_message(target: PolicyTarget) -> native.Target:
    if isinstance(target, StreamName):
        return make(native.Target, scope=target.scope, stream=target.stream)
    return native.Target(server=True) if target is None else make(native.Target, scope=target)


def target_of(message: native.Target) -> PolicyTarget:
    """Raises InvalidArgumentError for what names nothing, or the server and something else."""
    if message.server:
        if message.scope or message.stream:
            raise InvalidArgumentError("a level is the server, a scope or a stream", scope=message.scope)
        return None
    if not message.scope:
        raise InvalidArgumentError("a scope needs a name", scope="", stream=message.stream)
    return StreamName(message.scope, message.stream) if message.stream else message.scope


def held_target_of(message: native.Target) -> StreamName | str:
    """What a hold is placed on: a stream or a scope."""
    target = target_of(message)
    if target is None:
        raise InvalidArgumentError("a hold is placed on a stream or a scope", scope="")
    return target


def hold_message(hold: HoldInfo) -> native.Hold:
    return make(
        native.Hold,
        id=hold.id,
        target=target_message(hold.stream or hold.scope),
        owner=hold.owner,
        reason=hold.reason,
        created_ms=hold.created_ms,
        # Earlier versions stored ends beyond 64 bits. One of them must not hide all other holds.
        until_ms=None if hold.until_ms is None else min(hold.until_ms, LONG_MAX),
        cut=None if hold.cut is None else cut_message(hold.cut),
    )


def hold_of(message: native.Hold) -> HoldInfo:
    target = held_target_of(message.target)
    stream = target if isinstance(target, StreamName) else None
    return HoldInfo(
        id=message.id,
        scope=message.target.scope,
        stream=stream,
        owner=message.owner,
        reason=message.reason,
        created_ms=message.created_ms,
        until_ms=message.until_ms if message.HasField("until_ms") else None,
        cut=cut_of(message.cut) if message.HasField("cut") else None,
    )


# --- streams and subscribers --------------------------------------------------------------------------------------


def description_message(item: StreamDescription) -> native.StreamDescription:
    return native.StreamDescription(
        config=config_message(item.stream, item.config),
        epoch=item.epoch,
        sealed=item.sealed,
        segments=[range_message(item.stream, segment) for segment in item.segments],
        head=cut_message(item.head),
        tail=cut_message(item.tail),
        size_bytes=item.size_bytes,
        written_bytes=item.written_bytes,
        subscribers=[subscriber_message(subscriber) for subscriber in item.subscribers],
        held_by=item.held_by,
        disk_bytes=item.disk_bytes,
        pending_free_bytes=item.pending_free_bytes,
        freed_bytes=item.freed_bytes,
    )


def subscriber_message(item: SubscriberInfo) -> native.Subscriber:
    return make(
        native.Subscriber,
        name=item.name,
        generation=item.generation,
        cut=None if item.cut is None else cut_message(item.cut),
        updated_ms=item.updated_ms,
        lag_bytes=item.lag_bytes,
        lag_events=None if item.lag_events < 0 else item.lag_events,
        lag_ms=item.lag_ms,
        held_bytes=None if item.held_bytes < 0 else item.held_bytes,
        holes=item.holes,
        query=item.query,
        owner=item.owner,
    )


def subscriber_of(message: native.Subscriber) -> SubscriberInfo:
    return SubscriberInfo(
        name=message.name,
        generation=message.generation,
        cut=cut_of(message.cut) if message.HasField("cut") else None,
        updated_ms=message.updated_ms,
        lag_bytes=message.lag_bytes,
        lag_events=message.lag_events if message.HasField("lag_events") else -1,
        lag_ms=message.lag_ms if message.HasField("lag_ms") else None,
        held_bytes=message.held_bytes if message.HasField("held_bytes") else -1,
        holes=message.holes,
        query=message.query,
        owner=message.owner,
    )


def description_of(message: native.StreamDescription) -> StreamDescription:
    return StreamDescription(
        stream=stream_of(message.config.streamInfo),
        config=config_of(message.config),
        epoch=message.epoch,
        sealed=message.sealed,
        segments=ranges_of(message.segments),
        head=cut_of(message.head),
        tail=cut_of(message.tail),
        size_bytes=message.size_bytes,
        written_bytes=message.written_bytes,
        subscribers=tuple(subscriber_of(item) for item in message.subscribers),
        held_by=message.held_by,
        disk_bytes=message.disk_bytes,
        pending_free_bytes=message.pending_free_bytes,
        freed_bytes=message.freed_bytes,
    )


# --- segments -----------------------------------------------------------------------------------------------------


def chunk_message(item: ChunkRange) -> native.ChunkRange:
    message = native.ChunkRange(
        name=item.name, location=item.location, start_offset=item.start_offset, end_offset=item.end_offset
    )
    end = item.start_offset
    for block in item.blocks:
        message.block_gap.append(block.start_offset - end)
        message.block_length.append(block.end_offset - block.start_offset)
        message.block_crc32c.append(block.crc32c)
        message.block_event_count.append(block.event_count)
        end = block.end_offset
    if any(block.first_ms is not None for block in item.blocks):
        before_ms = 0
        for block in item.blocks:
            if block.first_ms is None or block.last_ms is None:
                message.block_time_ms.append(0)
                message.block_span_ms.append(_UNKNOWN)
                continue
            message.block_time_ms.append(block.first_ms - before_ms)
            message.block_span_ms.append(max(0, block.last_ms - block.first_ms))
            before_ms = block.first_ms
    return message


def _times_of(message: native.ChunkRange) -> list[tuple[int | None, int | None]]:
    """When each block's first and last append came; a server of an earlier version does not say."""
    count = len(message.block_length)
    if not message.block_time_ms and not message.block_span_ms:
        return [(None, None)] * count
    if not len(message.block_time_ms) == len(message.block_span_ms) == count:
        raise InvalidArgumentError("columns of a chunk's blocks differ in length", chunk=message.name)
    found: list[tuple[int | None, int | None]] = []
    at_ms = 0
    for gap, span in zip(message.block_time_ms, message.block_span_ms, strict=True):
        at_ms += gap
        found.append((None, None) if span < 0 else (at_ms, at_ms + span))
    return found


def chunk_of(message: native.ChunkRange) -> ChunkRange:
    """Raises ``InvalidArgumentError`` where the columns differ in length."""
    columns = (message.block_gap, message.block_length, message.block_crc32c, message.block_event_count)
    if len({len(column) for column in columns}) != 1:
        raise InvalidArgumentError("columns of a chunk's blocks differ in length", chunk=message.name)
    blocks = []
    end = message.start_offset
    for (gap, length, crc32c, event_count), (first_ms, last_ms) in zip(
        zip(*columns, strict=True), _times_of(message), strict=True
    ):
        start = end + gap
        end = start + length
        blocks.append(
            ChunkBlock(
                start_offset=start,
                end_offset=end,
                crc32c=crc32c,
                event_count=event_count,
                first_ms=first_ms,
                last_ms=last_ms,
            )
        )
    return ChunkRange(
        name=message.name,
        location=message.location if message.HasField("location") else None,
        start_offset=message.start_offset,
        end_offset=message.end_offset,
        blocks=tuple(blocks),
    )


def grant_message(grant: ImportGrant) -> native.ImportGrant:
    return same_message(native.ImportGrant, grant, without=("segment",))


def grant_of(segment: str, message: native.ImportGrant) -> ImportGrant:
    return same_of(ImportGrant, message, segment=segment)


def imported_message(chunk: ImportedChunk) -> native.ImportedChunk:
    return same_message(native.ImportedChunk, chunk)


def imported_of(message: native.ImportedChunk) -> ImportedChunk:
    return same_of(ImportedChunk, message)


def info_message(item: SegmentInfo) -> native.SegmentInfo:
    return make(
        native.SegmentInfo,
        segment=item.name,
        start_offset=item.start_offset,
        length=item.length,
        sealed=item.sealed,
        last_modified_ms=item.last_modified_ms,
        kept_offset=item.kept_offset,
        event_count=item.event_count,
    )


def info_of(message: native.SegmentInfo) -> SegmentInfo:
    return SegmentInfo(
        name=message.segment,
        start_offset=message.start_offset,
        length=message.length,
        sealed=message.sealed,
        last_modified_ms=message.last_modified_ms,
        kept_offset=message.kept_offset if message.HasField("kept_offset") else None,
        event_count=message.event_count,
    )


def span_message(item: SegmentSpan) -> native.SegmentSpan:
    return same_message(native.SegmentSpan, item)


def span_of(message: native.SegmentSpan) -> SegmentSpan:
    return same_of(SegmentSpan, message)


def space_message(item: SegmentSpace) -> native.SpacesResponse.Space:
    return make(
        native.SpacesResponse.Space,
        segment=item.name,
        live_bytes=item.live_bytes,
        tiered_bytes=item.tiered_bytes,
        pending_free_bytes=item.pending_free_bytes,
        freed_bytes=item.freed_bytes,
        kept_bytes=item.kept_bytes,
        leased_bytes=item.leased_bytes,
        leased_until_ms=item.leased_until_ms,
        partial_bytes=item.partial_bytes,
        leases=[
            native.SpacesResponse.Lease(id=str(lease.id), until_ms=lease.until_ms, holder=lease.holder)
            for lease in item.leases
        ],
    )


def space_of(message: native.SpacesResponse.Space) -> SegmentSpace:
    return SegmentSpace(
        name=message.segment,
        live_bytes=message.live_bytes,
        tiered_bytes=message.tiered_bytes,
        pending_free_bytes=message.pending_free_bytes,
        freed_bytes=message.freed_bytes,
        kept_bytes=message.kept_bytes,
        leased_bytes=message.leased_bytes,
        leased_until_ms=message.leased_until_ms if message.HasField("leased_until_ms") else None,
        partial_bytes=message.partial_bytes,
        leases=tuple(
            Lease(id=uuid_of(lease.id, field="lease"), until_ms=lease.until_ms, holder=lease.holder)
            for lease in message.leases
        ),
    )


def disk_message(item: DiskSpace) -> native.DiskResponse:
    return same_message(native.DiskResponse, item)


def disk_of(message: native.DiskResponse) -> DiskSpace:
    return same_of(DiskSpace, message)


def cut_or_none(message: Any, name: str) -> StreamCut | None:
    """The cut in an optional field of a message."""
    return cut_of(getattr(message, name)) if message.HasField(name) else None


def scrub_message(page: ScrubPage) -> native.ScrubResponse:
    return native.ScrubResponse(
        cursor=page.cursor,
        checked=dict(page.checked),
        damage=[json.dumps(item.as_json(), ensure_ascii=False) for item in page.damage],
    )


def scrub_of(message: native.ScrubResponse) -> ScrubPage:
    """Raises CorruptDataError where a finding cannot be read."""
    try:
        damage = [Damage.from_json(json.loads(item)) for item in message.damage]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("finding of a scrub cannot be read") from error
    cursor = message.cursor if message.HasField("cursor") else None
    return ScrubPage(cursor=cursor, checked=dict(message.checked), damage=damage)


def bounds_message(ranges: Sequence[tuple[int, int]]) -> native.ErasedRangesResponse:
    return make(native.ErasedRangesResponse, bounds=[bound for pair in ranges for bound in pair])


def bounds_of(message: native.ErasedRangesResponse) -> list[tuple[int, int]]:
    """Raises ProtocolError for a bound without its partner."""
    bounds = list(message.bounds)
    if len(bounds) % 2:
        raise ProtocolError("ranges do not come in pairs", bounds=len(bounds))
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def deleted_fields(item: DeletedStream | RestoredStream) -> dict[str, Any]:
    """A deleted or restored stream, for JSON."""
    return {**asdict(item), "stream": str(item.stream)}


def deleted_of(kind: Callable[..., V], found: Mapping[str, Any]) -> V:
    """Inverse of ``deleted_fields``, for either kind."""
    known = {item.name: found[item.name] for item in fields(cast("Any", kind))}
    as_tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    return kind(**{**as_tuples, "stream": StreamName.parse(found["stream"])})
