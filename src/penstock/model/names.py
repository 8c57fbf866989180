"""Names of scopes, streams and segments: what is legal, how they are spelled on the wire, how they are parsed.

Source: docs/design/0003-names.md. The spellings are Pravega's, so that its clients understand them.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias
from uuid import UUID

from penstock.model.errors import InvalidNameError
from penstock.model.segments import SegmentId, epoch_of, make_segment_id, number_of
from penstock.model.values.dataclass import dataclass

SCOPE_NAME_MAX = 255  # characters, as in Pravega
STREAM_NAME_MAX = 250  # characters; room for prefixes such as _MARK within Pravega's 255
_USER_NAME = re.compile(r"[A-Za-z0-9.-]+\Z")
_ANY_NAME = re.compile(r"_?[A-Za-z0-9._-]+\Z")
_SEGMENT = re.compile(r"(\d{1,10})(?:\.#epoch\.(\d{1,10}))?\Z")

MARK_PREFIX = "_MARK"
READER_GROUP_PREFIX = "_RG"
TABLE_SUFFIX = "_kvtable"
_GROUP_NAME_MAX = STREAM_NAME_MAX - len(READER_GROUP_PREFIX)  # characters; the state of a group is a stream
_NAME_MAX = {"scope": SCOPE_NAME_MAX, "reader group": _GROUP_NAME_MAX}
SYSTEM_SCOPE = "_system"
KEY_VALUE_TABLES = f"{SYSTEM_SCOPE}/_tables/keyvaluetables"
"""The table with the records of key-value tables, under ``scope/name``."""


def check_text(name: object) -> None:
    """Raise ``InvalidNameError`` for a name that is not a ``str``."""
    if not isinstance(name, str):
        raise InvalidNameError("a name must be text", type=type(name).__name__)


NameKind: TypeAlias = Literal["scope", "stream", "reader group", "table", "subscriber"]
"""What a name is of, in the words of its errors."""


def check_name(kind: NameKind, name: str, *, internal: bool = False) -> str:
    """Return ``name`` if it is legal for ``kind``, else raise ``InvalidNameError``.

    User names are letters, digits, dots and dashes. Names of our own (``internal``) may also hold underscores.
    ``..`` is refused: HTTP clients shorten ``streams/..`` in a path, and the request would reach the scope. ``.`` is
    refused for scopes only. No name ever becomes a file name.
    """
    check_text(name)
    limit = _NAME_MAX.get(kind, STREAM_NAME_MAX)
    pattern = _ANY_NAME if internal else _USER_NAME
    refused = (".", "..") if kind == "scope" else ("..",)
    if not 0 < len(name) <= limit or not pattern.match(name) or name in refused:
        raise InvalidNameError(
            f"{kind} name is not legal: use 1 to {limit} letters, digits, dots and dashes"
            f"{f', other than {name}' if name in refused else ''}",
            name=repr(name[:80]),
        )
    return name


@dataclass(frozen=True, slots=True, order=True)
class StreamName:
    """A stream within its scope. Prints and parses as ``scope/stream``."""

    scope: str
    stream: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.stream}"

    @classmethod
    def parse(cls, text: str, *, kind: NameKind = "stream") -> StreamName:
        """Parse ``scope/stream``. ``kind``: of the second part. Raises ``InvalidNameError`` unless it is text with exactly
        two parts."""
        check_text(text)
        scope, slash, stream = text.partition("/")
        if not slash or not scope or not stream or "/" in stream:
            word = kind.rpartition(" ")[2].upper()
            raise InvalidNameError(f"not a {kind}; write SCOPE/{word}", name=repr(text[:80]))
        return cls(scope, stream)

    def checked(self, *, kind: NameKind = "stream") -> StreamName:
        """Return self if both parts are legal user names, else raise ``InvalidNameError``. ``kind``: of the second part."""
        check_name("scope", self.scope)
        check_name(kind, self.stream)
        return self

    @property
    def is_internal(self) -> bool:
        """Whether the stream belongs to the store or to a client library, not to a user."""
        return self.stream.startswith("_") or self.scope.startswith("_")


AUDIT_STREAM = StreamName(SYSTEM_SCOPE, "audit")
ERASURE_FEED = StreamName(SYSTEM_SCOPE, "erasures")
RECORD_STREAMS = (AUDIT_STREAM, ERASURE_FEED)
"""In these the store records its own decisions. Clients can only read them, and need the right ``audit`` for it."""


def segment_name(stream: StreamName, segment: SegmentId) -> str:
    """``scope/stream/<number>.#epoch.<epoch>``."""
    return f"{stream.scope}/{stream.stream}/{number_of(segment)}.#epoch.{epoch_of(segment)}"


def table_segment_name(table: StreamName, partition: int) -> str:
    """The segment of a partition of the key-value table ``scope/name``: ``scope/name_kvtable/<partition>.#epoch.0``."""
    return segment_name(StreamName(table.scope, table.stream + TABLE_SUFFIX), make_segment_id(0, partition))


def parse_segment_name(name: str) -> tuple[StreamName, SegmentId]:
    """Inverse of ``segment_name``; also takes the older spelling without epoch. Raises ``InvalidNameError``."""
    parts = name.split("/")
    match = _SEGMENT.match(parts[2]) if len(parts) == 3 else None
    if match is None:
        raise InvalidNameError("not the name of a stream segment", name=repr(name[:120]))
    return StreamName(parts[0], parts[1]), make_segment_id(int(match[2] or 0), int(match[1]))


def transaction_segment_name(parent: str, txn: UUID) -> str:
    """``<segment>#transaction.<32 lower-case hex digits>``."""
    return f"{parent}#transaction.{txn.hex}"


def transient_segment_name(parent: str, writer: UUID, unique: UUID) -> str:
    """``<segment>#transient.<writer>.<unique>``, both 32 lower-case hex digits."""
    return f"{parent}#transient.{writer.hex}.{unique.hex}"
