"""Between retention's JSON documents and our own values: cuts, holds, subscribers."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from penstock.core.planner_json.stream import encode_cut
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError
from penstock.model.names import StreamName, check_name
from penstock.model.segments import SegmentId, make_segment_id
from penstock.net.http.reading_requests import Fields
from penstock.ports.control.streams import DeletedStream, RestoredStream
from penstock.ports.control.subscribers import SubscriberInfo

_SEGMENT = re.compile(r"(\d{1,10})#(\d{1,10})\Z", re.ASCII)
_CUT = "text of a cut, an object of offsets by number#epoch"

Document = dict[str, Any]


def cut_document(cut: StreamCut) -> Document:
    """Both forms of a cut: the text that all clients take, and the offsets in it."""
    return {"cut": cut.to_text(), "positions": encode_cut(cut.positions)}


def cut_of(stream: StreamName, value: object, *, field: str) -> StreamCut:
    """A cut as text or as an object of offsets by ``number#epoch``. Raises InvalidArgumentError, InvalidCutError."""
    if isinstance(value, str):
        # In a query an unescaped plus has become a space, which the text of a cut never holds.
        cut = StreamCut.from_text(value.replace(" ", "+"))
        if cut.stream != stream:
            raise InvalidCutError("cut belongs to another stream", stream=str(stream), cut_of=str(cut.stream))
        return cut
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"a cut is the {_CUT}", field=field, value=repr(value)[:60])
    return StreamCut(stream, {_segment_of(name, field): _offset_of(value[name], field) for name in value})


def _segment_of(text: str, field: str) -> SegmentId:
    match = _SEGMENT.match(text)
    if match is None:
        raise InvalidArgumentError("a segment is written number#epoch", field=field, value=text[:60])
    return make_segment_id(int(match[2]), int(match[1]))


def _offset_of(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgumentError("an offset is a whole number", field=field, value=repr(value)[:60])
    return value


def subscriber_document(item: SubscriberInfo) -> Document:
    """What is known of a subscriber; ``null`` where nothing is."""
    return {
        "name": item.name,
        "generation": item.generation,
        "cut": None if item.cut is None else item.cut.to_text(),
        "positions": None if item.cut is None else encode_cut(item.cut.positions),
        "updated_ms": item.updated_ms,
        "lag_bytes": item.lag_bytes,
        "lag_events": None if item.lag_events < 0 else item.lag_events,
        "lag_ms": item.lag_ms,
        "held_bytes": None if item.held_bytes < 0 else item.held_bytes,
        "holes": item.holes,
        "query": item.query or None,
        "owner": item.owner or None,
    }


def subscriber_name(stream: StreamName, text: str) -> str:
    """The full name of a subscriber; a bare one is of the stream's own scope."""
    return text if "/" in text else f"{stream.scope}/{text}"


def held_of(body: Fields) -> StreamName | str:
    """What a hold is placed on: ``stream`` as ``scope/stream``, or ``scope``, and not both."""
    scope, stream = body.text("scope"), body.text("stream")
    if (scope is None) == (stream is None):
        raise InvalidArgumentError(
            "a hold is placed on a stream or a scope: give one of them", scope=scope, stream=stream
        )
    if stream is not None:
        return StreamName.parse(stream)
    return check_name("scope", scope or "")


def deleted_document(item: DeletedStream | RestoredStream) -> dict[str, Any]:
    """A deleted or restored stream."""
    return {**asdict(item), "stream": str(item.stream)}
