"""HTTP answers of our own calls that differ from those of the port, and the forms of cuts, names and holds in
requests."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from penstock.core.planner_json.stream import encode_cut
from penstock.model.answers.plan import Offsets
from penstock.model.answers.undo import LostTruncation, RestoredSubscriber, UndoneTruncations
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError
from penstock.model.names import StreamName, check_name
from penstock.model.segments import SegmentId, make_segment_id
from penstock.ports.control.subscribers import SubscriberInfo

_SEGMENT = re.compile(r"(\d{1,10})#(\d{1,10})\Z", re.ASCII)
_CUT = "text of a cut, an object of offsets by number#epoch"


class Cut(Struct, frozen=True):
    """Both forms of a cut: the text that all clients accept, and its offsets by `number#epoch`."""

    cut: str
    positions: Offsets


class Subscriber(Struct, frozen=True, kw_only=True):
    """A subscriber, named `scope/group`; unknown values are null. `query`: the id of the query that owns it. `owner`: a
    description of who reads as this subscriber."""

    name: str
    generation: int
    cut: str | None
    positions: Offsets | None
    updated_ms: int
    lag_bytes: int
    lag_events: int | None
    lag_ms: int | None
    held_bytes: int | None
    holes: int
    query: str | None
    owner: str | None


class Undone(Struct, frozen=True, kw_only=True):
    """The new head, and the subscribers and truncations that were not restored."""

    cut: str
    positions: Offsets
    stream: str
    truncations: int
    bytes: int
    protected_until_ms: int
    subscribers: Sequence[RestoredSubscriber]
    not_restored: Sequence[LostTruncation]


def cut_document(cut: StreamCut) -> Cut:
    return Cut(cut.to_text(), encode_cut(cut.positions))


def undone_document(found: UndoneTruncations) -> Undone:
    fields = msgspec.structs.asdict(found)
    return Undone(cut=fields.pop("head_cut"), positions=fields.pop("head"), **fields)


def cut_of(stream: StreamName, value: object, *, field: str) -> StreamCut:
    """A cut as text or as an object of offsets by ``number#epoch``. Raises InvalidArgumentError, InvalidCutError."""
    if isinstance(value, str):
        # In a query, an unescaped plus has become a space, which the text of a cut never contains.
        cut = StreamCut.from_text(value.replace(" ", "+"))
        if cut.stream != stream:
            raise InvalidCutError("cut belongs to another stream", stream=str(stream), cut_of=str(cut.stream))
        return cut
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"a cut must be the {_CUT}", field=field, value=repr(value)[:60])
    return StreamCut(stream, {_segment_of(name, field): _offset_of(value[name], field) for name in value})


def _segment_of(text: str, field: str) -> SegmentId:
    match = _SEGMENT.match(text)
    if match is None:
        raise InvalidArgumentError("a segment must be written as number#epoch", field=field, value=text[:60])
    return make_segment_id(int(match[2]), int(match[1]))


def _offset_of(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgumentError("an offset must be a whole number", field=field, value=repr(value)[:60])
    return value


def subscriber_document(item: SubscriberInfo) -> Subscriber:
    return Subscriber(
        name=item.name,
        generation=item.generation,
        cut=None if item.cut is None else item.cut.to_text(),
        positions=None if item.cut is None else encode_cut(item.cut.positions),
        updated_ms=item.updated_ms,
        lag_bytes=item.lag_bytes,
        lag_events=None if item.lag_events < 0 else item.lag_events,
        lag_ms=item.lag_ms,
        held_bytes=None if item.held_bytes < 0 else item.held_bytes,
        holes=item.holes,
        query=item.query or None,
        owner=item.owner or None,
    )


def subscriber_name(stream: StreamName, text: str) -> str:
    """The full name of a subscriber; a bare name belongs to the stream's own scope."""
    return text if "/" in text else f"{stream.scope}/{text}"


def held_of(scope: str | None, stream: str | None) -> StreamName | str:
    """The target of a hold: ``stream`` as ``scope/stream``, or ``scope``, but not both."""
    if (scope is None) == (stream is None):
        raise InvalidArgumentError(
            "a hold must be on a stream or a scope; give one of them", scope=scope, stream=stream
        )
    return StreamName.parse(stream) if stream is not None else check_name("scope", scope or "")
