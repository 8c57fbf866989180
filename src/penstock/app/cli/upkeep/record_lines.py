"""Records as lines of JSON: what ``penstock read --record`` prints, ``penstock write --record`` reads."""

from __future__ import annotations

import base64
import binascii
import json as jsonlib
from typing import TYPE_CHECKING, Any

from penstock.model.errors import InvalidArgumentError, NotARecordError
from penstock.model.records import Record

if TYPE_CHECKING:
    from penstock.client.reading.blocks import Event

_FIELDS = frozenset({"key", "key_base64", "value", "value_base64", "headers", "timestamp_ms", "segment", "offset"})
_BASE64 = "_base64"


def record_line(event: Event) -> bytes | None:
    """The line of a record, with the place of its event. None: the event is not a record."""
    try:
        record = event.record
    except NotARecordError:
        return None
    fields: dict[str, Any] = {**_text("key", record.key), **_text("value", record.value)}
    if record.headers:
        fields["headers"] = [{"name": name, **_text("value", value)} for name, value in record.headers]
    if record.timestamp_ms is not None:
        fields["timestamp_ms"] = record.timestamp_ms
    return jsonlib.dumps({**fields, "segment": event.segment, "offset": event.offset}, ensure_ascii=False).encode()


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    """A field with the bytes as text, or with base64 if they are no text."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name + _BASE64: base64.b64encode(data).decode()}


def record_of_line(line: bytes) -> Record:
    """The record in a line. ``segment`` and ``offset`` are ignored.

    Raises InvalidArgumentError: no JSON object, a field that is unknown, missing or of another type.
    """
    try:
        given: Any = jsonlib.loads(line)
    except ValueError as error:
        raise InvalidArgumentError("--record takes one JSON object per line", line=repr(line[:80])) from error
    if not isinstance(given, dict):
        raise InvalidArgumentError("--record takes one JSON object per line", line=repr(line[:80]))
    unknown = sorted(given.keys() - _FIELDS)
    if unknown or not given.keys() & {"value", "value" + _BASE64}:
        raise InvalidArgumentError(
            "a record must have the field value, and may have key, headers and timestamp_ms",
            unknown=", ".join(unknown) or None,
            line=repr(line[:80]),
        )
    headers = given.get("headers") or ()
    if isinstance(headers, dict):
        headers = [{"name": name, "value": value} for name, value in headers.items()]
    try:
        pairs = [(item["name"], _bytes(item, "value")) for item in headers]
    except (LookupError, TypeError) as error:
        raise InvalidArgumentError(
            "headers must be an object, or a list of objects with name and value", line=repr(line[:80])
        ) from error
    return Record(
        _bytes(given, "value"), key=_bytes(given, "key"), headers=pairs, timestamp_ms=given.get("timestamp_ms")
    )


def _bytes(given: dict[str, Any], name: str) -> bytes | str | None:
    encoded = given.get(name + _BASE64)
    if encoded is None:
        text: str | None = given.get(name)
        return text
    try:
        return base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise InvalidArgumentError(f"field {name + _BASE64} is not base64", value=repr(encoded)[:60]) from error
