"""What happens to a case next, and what a request for one must hold.

A case is ``requested`` while it waits for the approval of a second identity, ``open`` while events are searched and
erased, ``deferred`` while holds keep some of them, ``performed`` once a search up to the tail found no more, and
``verified`` once a second search from the head found none. An event that arrives later opens it again. ``closed`` and
``withdrawn`` are final. Source: docs/design/0056-erasure-cases.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.codec.control.cases import CaseRecord, CaseState
from penstock.core.cases.ledger import key_digest
from penstock.core.cases.matching import Contains, JsonField, KeyedField, Matcher, check_parts
from penstock.model.errors import InvalidArgumentError, InvalidNameError
from penstock.model.names import StreamName

VALUES_MAX = 5000  # values of one case: their record must fit into the controller's table
VALUE_BYTES_MAX = 256 << 10  # of all values of a case together
TARGETS_MAX = 1000  # streams and scopes of one case
_SURROGATE = re.compile("[\ud800-\udfff]")
EVERYTHING = "*"
"""As a target: all streams of the store."""
DUE_MS = 30 * 86_400_000
"""A month: what Article 12 of the GDPR allows for the answer to a request."""


def after_search(state: CaseState, *, found: int, is_held: bool) -> CaseState:
    """The state after a search up to the tail, and after the erasure of what it found.

    ``found``: events that this search found. ``is_held``: holds keep some events that were found now or before.
    """
    if state.is_final:
        return state
    if is_held:
        return CaseState.DEFERRED
    if state is CaseState.VERIFIED and not found:
        return state
    return CaseState.PERFORMED


def after_proof(state: CaseState, *, found: int) -> CaseState:
    """The state after the second search, which reads everything again. ``found``: events that were still readable."""
    if state is not CaseState.PERFORMED:
        return state
    return CaseState.OPEN if found else CaseState.VERIFIED


def is_overdue(state: CaseState, *, due_ms: int, now_ms: int) -> bool:
    """Whether the case should be proved by now, and is not."""
    return not state.is_proved and now_ms > due_ms


def with_key(record: CaseRecord, key: bytes | None) -> CaseRecord:
    """The record, with the digest of the key if it has digests of values."""
    return record if key is None or "digests" not in record.subject else replace(record, key=key_digest(key))


def has_key(record: CaseRecord, key: bytes | None) -> bool:
    """Whether the key is the one of the case's digests; with another one, a search finds nothing."""
    return record.key is None or (key is not None and record.key == key_digest(key))


def without_values(record: CaseRecord, key: bytes | None) -> dict[str, Any]:
    """The subject as a document with keyed digests in place of values, or (``left_out``) their number.

    Values have no digests if the whole payload is searched. Without the key of its digests nobody can use them.
    """
    subject = record.subject
    if not has_key(record, key):
        return {"by": subject["by"], "left_out": len(subject["digests"])}
    if "digests" in subject:
        return dict(subject)
    matcher = matcher_of(subject, key)
    if isinstance(matcher, JsonField) and key is not None:
        return document_of(matcher.keyed(key))
    return {"by": subject["by"], "left_out": len(subject["values"])}


def check_key(record: CaseRecord, key: bytes | None) -> None:
    """Raises InvalidArgumentError unless ``has_key``."""
    if not has_key(record, key):
        raise InvalidArgumentError(
            "digests of the case were made with another key; put back erasure.key of this store, "
            "or withdraw the case and open one with the values",
            key=None if key is None else key_digest(key)[:16],
            needed=None if record.key is None else record.key[:16],
        )


def checked_targets(targets: Sequence[str]) -> list[str]:
    """Streams (``scope/stream``), scopes, or ``*``; distinct and sorted. Raises InvalidArgumentError."""
    found: dict[str, None] = {}
    for target in targets:
        try:
            if target != EVERYTHING:
                name = StreamName.parse(target if "/" in target else f"{target}/stream")
                if name.is_internal:
                    raise InvalidArgumentError("events of an internal stream cannot be erased", stream=target)
                # A pattern such as "scope/*" is no stream: the case would search nothing, and be verified.
                name.checked()
        except (InvalidNameError, TypeError) as error:
            raise InvalidArgumentError(
                "targets of a case must be streams (SCOPE/STREAM), scopes (SCOPE) or everything (*)",
                target=ascii(target)[:120],
            ) from error
        found[target] = None
    if not 0 < len(found) <= TARGETS_MAX:
        raise InvalidArgumentError("a case must have 1 to 1,000 targets", targets=len(found))
    return sorted(found)


def concerns(targets: Sequence[str], stream: StreamName) -> bool:
    """Whether the targets cover the stream. No case covers internal streams."""
    return not stream.is_internal and any(item in (EVERYTHING, stream.scope, str(stream)) for item in targets)


def overlaps(targets: Sequence[str], level: str) -> bool:
    """Whether a rule at the level (``scope/stream``, a scope, or empty for the store) covers some of the targets."""
    if level == "" or EVERYTHING in targets:
        return True
    scope, is_stream, _ = level.partition("/")
    return any(item == level or (item == scope if is_stream else item.partition("/")[0] == scope) for item in targets)


def level_of(targets: Sequence[str]) -> StreamName | str | None:
    """The lowest level that covers all targets: who approves a case must have the right there."""
    if len(targets) == 1 and "/" in targets[0]:
        return StreamName.parse(targets[0])
    scopes = {item.partition("/")[0] for item in targets}
    return None if len(scopes) > 1 or EVERYTHING in scopes else next(iter(scopes))


def approval_arguments(case: str, record: CaseRecord) -> dict[str, Any]:
    """What an approval of a case names: no values, because the audit stream keeps it."""
    return {
        "case": case,
        "targets": list(record.targets),
        "by": record.subject["by"],
        "field": record.subject.get("field"),
        "values": len(record.subject.get("values") or record.subject["digests"]),
        "who": record.who,
        "why": record.why,
        "due_ms": record.due_ms,
    }


def stored_subject(subject: Mapping[str, Any], key: bytes | None, *, keep_values: bool) -> dict[str, Any]:
    """The subject as a case stores it: with its values, or with keyed digests of them. Raises InvalidArgumentError."""
    matcher = matcher_of(subject, key)
    check_parts(matcher)
    if not keep_values and isinstance(matcher, Contains):
        raise InvalidArgumentError(
            "values in whole payloads cannot be found by digests; name a field, or let the case keep the values"
        )
    if not keep_values and isinstance(matcher, JsonField):
        if key is None:
            raise InvalidArgumentError("this store has no key for digests of values")
        matcher = matcher.keyed(key)
    return document_of(matcher)


def matcher_of(subject: Mapping[str, Any], key: bytes | None) -> Matcher:
    """The matcher that a document describes: ``by`` (``json field`` or ``payload contains``), ``field``, and ``values``
    or, as hex, ``digests``. ``key``: of the digests.

    Raises InvalidArgumentError.
    """
    unknown = sorted(set(subject) - {"by", "field", "values", "digests"})
    by, values, digests = subject.get("by"), subject.get("values") or (), subject.get("digests") or ()
    if unknown or by not in ("json field", "payload contains") or bool(values) == bool(digests):
        raise InvalidArgumentError(
            "a subject must have 'json field' with its 'field', or 'payload contains', and either 'values' or 'digests'",
            unknown=unknown,
        )
    for texts in (values, digests):
        _check_texts(texts)
    path = _checked_field(by, subject.get("field"))
    if digests:
        return _keyed(path, digests, key)
    wanted = frozenset(values)
    return Contains(values=wanted) if path is None else JsonField(path=path, values=wanted)


def _checked_field(by: str, path: object) -> str | None:
    if by == "payload contains":
        if path is not None:
            raise InvalidArgumentError("a search of the whole payload has no field", field=ascii(path)[:60])
        return None
    if not isinstance(path, str) or not all(path.split(".")) or len(path) > 1024 or _SURROGATE.search(path):
        raise InvalidArgumentError("the field must be a name, or names joined by dots", field=ascii(path)[:60])
    return path


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str) or not all(isinstance(item, str) for item in texts):
        raise InvalidArgumentError("values of a subject must be a list of strings")
    try:
        size = sum(len(item.encode()) for item in texts)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError("a value of a subject is not valid text: it has half of a surrogate pair") from error
    if len(texts) > VALUES_MAX or size > VALUE_BYTES_MAX:
        raise InvalidArgumentError(
            "too many values for one case; open several",
            values=len(texts),
            limit=VALUES_MAX,
            size_bytes=size,
            limit_bytes=VALUE_BYTES_MAX,
        )
    # Erased payloads are zeros: a value of zeros would be found in them forever.
    if not all(item.strip("\0") for item in texts):
        raise InvalidArgumentError("a value is empty, or consists of NUL characters")


def _keyed(path: str | None, digests: Sequence[str], key: bytes | None) -> KeyedField:
    if path is None:
        raise InvalidArgumentError("digests can be compared with a field only, not searched for in a payload")
    if key is None:
        raise InvalidArgumentError("this store has no key for digests of values")
    try:
        found = frozenset(bytes.fromhex(item) for item in digests)
    except ValueError as error:
        raise InvalidArgumentError("a digest is not hex") from error
    if any(len(item) != 32 for item in found):
        raise InvalidArgumentError("a digest must have 32 bytes: HMAC-SHA-256 of a value with the key of the store")
    return KeyedField(path=path, digests=found, key=key)


def document_of(matcher: Matcher) -> dict[str, Any]:
    """The document that ``matcher_of`` reads."""
    if isinstance(matcher, Contains):
        return {"by": "payload contains", "values": sorted(matcher.values)}
    document = {"by": "json field", "field": matcher.path}
    if isinstance(matcher, JsonField):
        return {**document, "values": sorted(matcher.values)}
    return {**document, "digests": sorted(item.hex() for item in matcher.digests)}
