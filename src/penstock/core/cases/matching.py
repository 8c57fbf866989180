"""Which events are about a person. A matcher has the values, or keyed digests of them."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from penstock.core.segments.erasure_receipt import NOT_SEEN, values_digest
from penstock.model.errors import InvalidArgumentError, UnsearchableEventError
from penstock.model.values.dataclass import dataclass

_NOT_SEEN_IN_FIELD = (
    "arrays and objects at the field, numbers in another notation, JSON within strings, "
    "anything after the first invalid JSON, compressed or encrypted payloads"
)


PARTS_MAX = 64
"""Names of a field's path. Each event of a search is compared with all of them, in the controller's process."""


def check_parts(matcher: Matcher) -> None:
    """Raises InvalidArgumentError: the path of the field has more than ``PARTS_MAX`` names."""
    parts = 0 if isinstance(matcher, Contains) else matcher.path.count(".") + 1
    if parts > PARTS_MAX:
        raise InvalidArgumentError("the path of the field has too many names", names=parts, limit=PARTS_MAX)


def check_can_match(matcher: Matcher) -> None:
    """Raises InvalidArgumentError: the search can find nothing, so that its result would look like a proof."""
    check_parts(matcher)
    wanted = matcher.digests if isinstance(matcher, KeyedField) else matcher.values
    if not wanted or (not isinstance(matcher, KeyedField) and not all(value.strip("\0") for value in matcher.values)):
        raise InvalidArgumentError("a search needs values, and none of them may be empty", values=len(wanted))
    if not isinstance(matcher, Contains) and not all(matcher.path.split(".")):
        raise InvalidArgumentError("the field must be a name, or names joined by dots", field=ascii(matcher.path)[:60])


class _Object(list[tuple[str, Any]]):
    """A JSON object with all of its members, including repeated names."""


_JSON = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str, object_pairs_hook=_Object, strict=False)
"""Keeps numbers as written: Python would write 1.10 and 1e5 differently."""

_BETWEEN = re.compile(r"[\s\x00\x1e\ufeff,]*")
"""Characters allowed before, between and after the JSON texts of one event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonField:
    """Events whose payload is JSON with one of the values at a path of names and indexes, such as ``user.id`` or
    ``users.0.id``. Numbers, ``true``, ``false`` and ``null`` match their JSON text, as written in the event.

    A name may itself hold dots: ``user.id`` is also the member ``"user.id"``. Repeated names are all searched.
    An event may hold several JSON texts, with space, NUL, commas and record separators between them. The search ends
    at the first text that cannot be read.
    """

    path: str
    values: frozenset[str]

    def looked_for(self) -> dict[str, Any]:
        """The search criteria, as a receipt records them."""
        return {
            "by": "json field",
            "field": self.path,
            "values": len(self.values),
            "values_sha256": values_digest(value.encode() for value in self.values),
            NOT_SEEN: _NOT_SEEN_IN_FIELD,
        }

    def matcher(self) -> Callable[[bytes], bool]:
        """Whether an event matches. The call raises UnsearchableEventError: it is nested too deeply to be read."""
        names, values = self.path.split("."), self.values
        return lambda event: any(value in values for value in values_in(event, names))

    def keyed(self, key: bytes) -> KeyedField:
        """The same search without the values."""
        return KeyedField(path=self.path, digests=frozenset(keyed_digest(key, value) for value in self.values), key=key)


def keyed_digest(key: bytes, value: str) -> bytes:
    """HMAC-SHA-256 of the value: without the key nobody can find out whether a digest is of a known value."""
    return hmac.digest(key, value.encode("utf-8", "surrogatepass"), "sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedField:
    """As ``JsonField``, for values of which only keyed digests are known. ``key`` is the key of the store."""

    path: str
    digests: frozenset[bytes]
    key: bytes = field(repr=False)

    def looked_for(self) -> dict[str, Any]:
        """The search criteria, as a receipt records them. A keyed digest stands for the values."""
        digest = hashlib.sha256(b"".join(sorted(self.digests))).hexdigest()
        return {
            "by": "json field",
            "field": self.path,
            "values": len(self.digests),
            "values_hmac_sha256": digest,
            NOT_SEEN: _NOT_SEEN_IN_FIELD,
        }

    def matcher(self) -> Callable[[bytes], bool]:
        """As ``JsonField.matcher``."""
        names, digests, key = self.path.split("."), self.digests, self.key
        return lambda event: any(keyed_digest(key, value) in digests for value in values_in(event, names))


def values_in(event: bytes, names: Sequence[str]) -> Iterator[str]:
    """The values at the path of names, as text or as their JSON text. Raises UnsearchableEventError.

    Visits each node of the JSON at most once, and takes time in proportion to the size of the event.
    """
    for text in _texts_of(event):
        for found in _values_at(text, names):
            yield found if isinstance(found, str) else json.dumps(found)


def _texts_of(event: bytes) -> Iterator[Any]:
    """The JSON texts of an event, up to the first that cannot be read."""
    # A NUL before UTF-8 looks like UTF-16.
    for encoding in {json.detect_encoding(event): None, "utf-8": None}:
        try:
            text = event.decode(encoding, "surrogatepass")
        except ValueError:
            # Bytes that are not text in one place must not hide the rest.
            text = event.decode(encoding, "replace")
        yield from _texts_in(text)


def _texts_in(text: str) -> Iterator[Any]:
    position = _end_of(_BETWEEN.match(text))
    while position < len(text):
        try:
            found, position = _JSON.raw_decode(text, position)
        except ValueError:
            return
        except RecursionError:
            raise UnsearchableEventError("event is nested too deeply to be searched", size_bytes=len(text)) from None
        yield found
        position = _end_of(_BETWEEN.match(text, position))


def _end_of(match: re.Match[str] | None) -> int:
    return 0 if match is None else match.end()


def _values_at(found: Any, names: Sequence[str]) -> Iterator[Any]:
    """Each value at the path that is neither an array nor an object."""
    if not names:
        if not isinstance(found, list):
            yield found
    elif isinstance(found, _Object):
        first = names[0]
        for name, value in found:
            # A member's name may contain dots. It then matches several names of the path.
            if name.startswith(first):
                count = name.count(".") + 1
                if name == ".".join(names[:count]):
                    yield from _values_at(value, names[count:])
    elif isinstance(found, list) and names[0].isdecimal() and int(names[0]) < len(found):
        yield from _values_at(found[int(names[0])], names[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Contains:
    """Events whose payload holds one of the values as bytes, anywhere."""

    values: frozenset[str]

    def looked_for(self) -> dict[str, Any]:
        return {
            "by": "payload contains",
            "values": len(self.values),
            "values_sha256": values_digest(value.encode() for value in self.values),
            NOT_SEEN: "values in another form: with escapes, in another encoding, compressed or encrypted",
        }

    def matcher(self) -> Callable[[bytes], bool]:
        """Whether an event matches."""
        return _Needles(self.values).are_in


class _Needles:
    """Many values to search for in payloads. They are indexed by their first bytes, so that their number costs
    little."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values = sorted({value.encode() for value in values})
        self._size = min(map(len, self._values), default=0)
        found: dict[bytes, list[bytes]] = {}
        for value in self._values:
            found.setdefault(value[: self._size], []).append(value)
        self._by_start = {start: tuple(some) for start, some in found.items()}

    def are_in(self, event: bytes) -> bool:
        """Whether the payload holds one of them."""
        if len(self._values) < len(event):
            return any(value in event for value in self._values)
        size, by_start = self._size, self._by_start
        for at in range(len(event) - size + 1):
            some = by_start.get(event[at : at + size])
            if some is not None and event.startswith(some, at):
                return True
        return False


Matcher: TypeAlias = JsonField | KeyedField | Contains
