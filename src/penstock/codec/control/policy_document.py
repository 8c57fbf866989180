"""The policy document and holds as JSON: for files, requests, and the store's own tables.

Source: docs/formats/policy.md. An absent field is left to the next level; ``null`` means unlimited.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    InvalidCutError,
    InvalidNameError,
    VersionTooNewError,
)
from penstock.model.names import StreamName
from penstock.model.policies import LONG_MAX
from penstock.model.retention import (
    INHERIT,
    Backlog,
    Combine,
    HoldInfo,
    Idle,
    IdleWhen,
    Inherit,
    Measure,
    OnExceed,
    PolicyDocument,
    Retain,
    Unsubscribed,
)
from penstock.model.values.dataclass import dataclass

VERSION = 1
_SHOWN = 60  # characters of a value in an error
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Kind(enum.Enum):
    """The type of a field."""

    BYTES = "bytes"
    SECONDS = "seconds"
    EVENTS = "events"
    SHARE = "share"
    CHOICE = "choice"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of the document. ``path``: such as ``retain.min_bytes``. ``zero`` and ``null``: whether these values
    are allowed."""

    path: str
    kind: Kind
    zero: bool = True
    null: bool = True
    choices: type[enum.Enum] | None = None

    @property
    def section(self) -> str:
        """The section that contains it; empty for the document itself."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def accepted(self) -> str:
        """A description of the accepted values, for people."""
        if self.choices is not None:
            return ", ".join(f'"{item.value}"' for item in self.choices)
        if self.kind is Kind.SHARE:
            return "a number above 0 and up to 1"
        if self.kind is Kind.TIME:
            return 'a time of ISO 8601 with its zone, such as "2031-01-01T00:00:00Z", or a day, which begins in UTC'
        least = "0 or more" if self.zero else "more than 0"
        noun = {Kind.BYTES: "whole bytes", Kind.SECONDS: "seconds", Kind.EVENTS: "whole events"}[self.kind]
        return f"{noun}, {least}{', or null for unlimited' if self.null else ''}"


# In Pulsar, a TTL, an age or an idle time of 0 means no limit; taken literally it means "at once". So 0 is refused:
# nobody must lose all data to a misunderstanding.
FIELDS: Final[Sequence[Field]] = (
    Field(path="retain.min_bytes", kind=Kind.BYTES),
    Field(path="retain.min_age_s", kind=Kind.SECONDS),
    Field(path="retain.combine", kind=Kind.CHOICE, null=False, choices=Combine),
    Field(path="retain.max_bytes", kind=Kind.BYTES),
    Field(path="retain.max_age_s", kind=Kind.SECONDS),
    Field(path="retain.measure", kind=Kind.CHOICE, null=False, choices=Measure),
    Field(path="retain.lock_until", kind=Kind.TIME, zero=False, null=False),
    Field(path="unsubscribed", kind=Kind.CHOICE, null=False, choices=Unsubscribed),
    Field(path="backlog.ttl_s", kind=Kind.SECONDS, zero=False),
    Field(path="backlog.max_bytes", kind=Kind.BYTES),
    Field(path="backlog.max_age_s", kind=Kind.SECONDS, zero=False),
    Field(path="backlog.max_events", kind=Kind.EVENTS),
    Field(path="backlog.on_exceed", kind=Kind.CHOICE, null=False, choices=OnExceed),
    Field(path="backlog.on_exceed_bytes", kind=Kind.CHOICE, null=False, choices=OnExceed),
    Field(path="backlog.on_exceed_age", kind=Kind.CHOICE, null=False, choices=OnExceed),
    Field(path="backlog.on_exceed_events", kind=Kind.CHOICE, null=False, choices=OnExceed),
    Field(path="backlog.evict_to", kind=Kind.SHARE, null=False),
    Field(path="idle.subscriber_s", kind=Kind.SECONDS, zero=False),
    Field(path="idle.stream_s", kind=Kind.SECONDS, zero=False),
    Field(path="idle.stream_when", kind=Kind.CHOICE, null=False, choices=IdleWhen),
    Field(path="grace_s", kind=Kind.SECONDS, null=False),
)
LOCK: Final = "retain.lock_until"
"""The field whose effective value is the latest of all levels, not the first."""
QUOTA_ACTIONS: Final[Mapping[str, str]] = {
    "backlog.on_exceed_bytes": "backlog.max_bytes",
    "backlog.on_exceed_age": "backlog.max_age_s",
    "backlog.on_exceed_events": "backlog.max_events",
}
"""The action of one quota, with its limit. Within one document it overrides ``on_exceed``, the action of the others."""
BY_PATH: Final[Mapping[str, Field]] = {item.path: item for item in FIELDS}
SECTIONS: Final[Mapping[str, type[Retain] | type[Backlog] | type[Idle]]] = {
    "retain": Retain,
    "backlog": Backlog,
    "idle": Idle,
}
_TOP = ("version", *SECTIONS, *(item.path for item in FIELDS if not item.section))


def value_of(document: PolicyDocument, path: str) -> Any:
    """The value of a field such as ``retain.min_bytes``; INHERIT if the document does not set it."""
    section, _, name = path.rpartition(".")
    return getattr(getattr(document, section) if section else document, name)


def check_value(item: Field, value: Any, *, path: str = "policy.") -> Any:
    """The value as the document holds it: a number, None, a member of the field's choices, or INHERIT.

    Choices may be given by their value. Raises InvalidArgumentError with ``field``, ``value``, ``rule`` and ``accepted``.
    """
    if isinstance(value, Inherit):
        return value
    rule = _broken_rule(item, value)
    if rule is not None:
        raise InvalidArgumentError(
            "policy field cannot be used", field=path + item.path, value=_show(value), rule=rule, accepted=item.accepted
        )
    if item.choices is not None:
        return value if isinstance(value, item.choices) else item.choices(value)
    if item.kind is Kind.TIME:
        return time_text(value)
    whole = item.kind in (Kind.BYTES, Kind.EVENTS) or (isinstance(value, float) and value.is_integer())
    return value if value is None or not whole or item.kind is Kind.SHARE else int(value)


def _broken_rule(item: Field, value: Any) -> str | None:
    if value is None:
        return None if item.null else "it cannot be unlimited; leave it out for the next level's value"
    if item.choices is not None:
        known = isinstance(value, str) and value in {member.value for member in item.choices}
        return None if known or isinstance(value, item.choices) else "it is one of the accepted words"
    if item.kind is Kind.TIME:
        return None if time_text(value) else "it is a time with its zone"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "it is a number"
    if isinstance(value, float) and not math.isfinite(value):
        return "it is a finite number"
    if value < 0:
        return "it is not negative" + ("; null is unlimited" if item.null else "")
    if item.kind is Kind.SHARE:
        return None if 0 < value <= 1 else "it is a share above 0 and up to 1"
    if value == 0 and not item.zero:
        return "it is more than 0; null lifts the limit"
    if item.kind is not Kind.SECONDS and isinstance(value, float) and not value.is_integer():
        return "it is a whole number"
    if value * (1000 if item.kind is Kind.SECONDS else 1) >= LONG_MAX:
        return "it is implausibly large" + ("; null is unlimited" if item.null else "")
    return None


def time_text(value: object) -> str | None:
    """A time as the document holds it: UTC, in whole seconds or milliseconds; None if it is no time with a zone.

    Takes text of ISO 8601 or a datetime. A day is its beginning in UTC. Parts of milliseconds are rounded up.
    """
    found = value
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
        if len(value.strip()) == len("2031-01-01") and isinstance(found, datetime):
            found = found.replace(tzinfo=UTC)
    if not isinstance(found, datetime) or found.tzinfo is None:
        return None
    try:
        return _text_of(found.astimezone(UTC))
    except OverflowError:
        return None


def _text_of(at: datetime) -> str:
    if at.microsecond % 1000:
        at += timedelta(microseconds=1000 - at.microsecond % 1000)
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds" if at.microsecond else "seconds") + "Z"


def time_ms(text: str) -> int:
    """Milliseconds since the Unix epoch of ``time_text``."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)


def text_of_ms(at_ms: int) -> str:
    """Inverse of ``time_ms``."""
    return _text_of(_EPOCH + timedelta(milliseconds=at_ms))


def _show(value: Any) -> str:
    try:
        return json.dumps(value)[:_SHOWN]
    except (TypeError, ValueError):
        # Numbers of thousands of digits have no text.
        return type(value).__name__ if isinstance(value, int) else repr(value)[:_SHOWN]


def encode_document(document: PolicyDocument) -> dict[str, Any]:
    """The document as a JSON object, in seconds and bytes; unset fields and empty sections are left out."""
    body: dict[str, Any] = {}
    for item in FIELDS:
        value = value_of(document, item.path)
        if isinstance(value, Inherit):
            continue
        target = body.setdefault(item.section, {}) if item.section else body
        target[item.name] = value.value if isinstance(value, enum.Enum) else value
    return body


def decode_document(value: Any, *, path: str = "policy.") -> PolicyDocument:
    """Decode a document from JSON. ``null`` in place of the document or a section sets nothing.

    Each field is checked separately; ``core.policies.levels.validate`` checks them against each other. Raises
    InvalidArgumentError with ``field`` (``path`` first), ``value``, ``rule`` and ``accepted``; unknown fields are
    refused.
    """
    body = _object(value, path.rstrip(".") or "policy", "the document", _TOP, path)
    version = body.get("version", VERSION)
    if isinstance(version, bool) or version != VERSION:
        raise InvalidArgumentError(
            "policy field cannot be used",
            field=f"{path}version",
            value=_show(version),
            rule="it is the version of the format",
            accepted=str(VERSION),
        )
    sections = {name: _section(body.get(name), name, path) for name in SECTIONS}
    rest = {
        item.name: check_value(item, body.get(item.name, INHERIT), path=path) for item in FIELDS if not item.section
    }
    return PolicyDocument(**sections, **rest)


def _section(value: Any, name: str, path: str) -> Any:
    known = [item for item in FIELDS if item.section == name]
    body = _object(value, path + name, f"the section {name}", [item.name for item in known], f"{path}{name}.")
    return SECTIONS[name](**{item.name: check_value(item, body.get(item.name, INHERIT), path=path) for item in known})


def _object(value: Any, field: str, what: str, names: Sequence[str], path: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidArgumentError(
            "policy field cannot be used",
            field=field,
            value=_show(value),
            rule=f"{what} is an object",
            accepted="an object with " + ", ".join(names),
        )
    for name in value:
        if name not in names:
            # A misspelt field must not count as absent.
            raise InvalidArgumentError(
                "policy field is not known",
                field=f"{path}{str(name)[:_SHOWN]}",
                value=_show(value[name]),
                rule="only known fields are accepted",
                accepted=", ".join(names),
            )
    return value


def pack_document(document: PolicyDocument) -> bytes:
    """The stored form: JSON with the version of the format, UTF-8. Equal documents give equal bytes."""
    return json.dumps({"version": VERSION, **encode_document(document)}, separators=(",", ":")).encode()


def unpack_document(data: bytes | memoryview, *, where: str = "") -> PolicyDocument:
    """Inverse of ``pack_document``. ``where`` names the place in errors.

    A caller that cannot read a policy must delete nothing under it. Raises: VersionTooNewError (written by a newer
    version), CorruptDataError (not a document).
    """
    body = _load(data, "policy document", where)
    try:
        return decode_document(body)
    except InvalidArgumentError as error:
        raise CorruptDataError("stored policy document is damaged", where=where, **error.fields) from error


def _load(data: bytes | memoryview, what: str, where: str) -> dict[str, Any]:
    try:
        body = json.loads(bytes(data).decode())
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"stored {what} is not JSON", where=where, cause=str(error)[:_SHOWN]) from error
    if not isinstance(body, dict):
        raise CorruptDataError(f"stored {what} is not an object", where=where)
    version = body.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise CorruptDataError(f"stored {what} has no version", where=where, version=_show(version))
    if version > VERSION:
        raise VersionTooNewError(f"stored {what} has a newer version", where=where, version=version, known=VERSION)
    return body


_HOLD = ("id", "scope", "stream", "owner", "reason", "created_ms", "until_ms", "cut")


def encode_hold(hold: HoldInfo) -> dict[str, Any]:
    """The hold as a JSON object. ``stream`` is ``scope/stream``, ``cut`` the text of the cut; all fields are
    present."""
    return {
        "id": hold.id,
        "scope": hold.scope,
        "stream": None if hold.stream is None else str(hold.stream),
        "owner": hold.owner,
        "reason": hold.reason,
        "created_ms": hold.created_ms,
        "until_ms": hold.until_ms,
        "cut": None if hold.cut is None else hold.cut.to_text(),
    }


def decode_hold(value: Any) -> HoldInfo:
    """The hold that ``encode_hold`` wrote. Raises InvalidArgumentError with ``field`` and ``value``."""
    body = _object(value, "hold", "a hold", ("version", *_HOLD), "hold.")
    texts: dict[str, str] = {}
    for name in ("id", "scope", "owner", "reason"):
        text = body.get(name)
        if not isinstance(text, str):
            raise InvalidArgumentError("a field of a hold must be text", field=f"hold.{name}", value=_show(text))
        texts[name] = text
    for name in ("created_ms", "until_ms"):
        number = body.get(name)
        absent = number is None and name == "until_ms"
        if not absent and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise InvalidArgumentError(
                "a time of a hold must be in milliseconds", field=f"hold.{name}", value=_show(number)
            )
    for name in ("stream", "cut"):
        if not isinstance(body.get(name), str | None):
            raise InvalidArgumentError("a field of a hold must be text", field=f"hold.{name}", value=_show(body[name]))
    try:
        stream = None if body.get("stream") is None else StreamName.parse(body["stream"])
        cut = None if body.get("cut") is None else StreamCut.from_text(body["cut"])
    except (InvalidNameError, InvalidCutError) as error:
        raise InvalidArgumentError(f"a hold cannot be used: {error.message}", field="hold", **error.fields) from error
    return HoldInfo(**texts, stream=stream, created_ms=body["created_ms"], until_ms=body.get("until_ms"), cut=cut)


def pack_hold(hold: HoldInfo) -> bytes:
    """The stored form of a hold."""
    return json.dumps({"version": VERSION, **encode_hold(hold)}, separators=(",", ":")).encode()


def unpack_hold(data: bytes | memoryview, *, where: str = "") -> HoldInfo:
    """Inverse of ``pack_hold``. Raises VersionTooNewError, CorruptDataError: then all data that it may cover must be
    kept."""
    try:
        return decode_hold(_load(data, "hold", where))
    except InvalidArgumentError as error:
        raise CorruptDataError("stored hold is damaged", where=where, **error.fields) from error
