"""Keys of the records of retention, in the same table as a stream's own records.

Source: docs/formats/metadata.md.
"""

from __future__ import annotations

from penstock.controller.keys import encoded
from penstock.model.names import ERASURE_FEED, StreamName

CLOCK = b"clock/retention"
BUCKET_COUNT = b"buckets/count"
HEARTBEATS = b"controller/"
OUTBOX = b"audit/"
GAPS = b"audit-gap/"
AUDIT_LOG = b"audit-log"
GRACES = b"grace/"
DELETED = b"deleted/"
LEFT_TABLES = b"left-tables/"


def bucket(number: int) -> bytes:
    return f"bucket/{number:05}".encode()


def heartbeat(controller: str) -> bytes:
    return f"controller/{controller}".encode()


def outbox(life: str, number: int) -> bytes:
    return f"audit/{life}/{number:016x}".encode()


def gap(life: str) -> bytes:
    return f"audit-gap/{life}".encode()


def gap_reported(life: str) -> bytes:
    return f"audit-told/{life}".encode()


AUDIT_KEYS = b"audit-keys/"


def audit_keys(log: str) -> bytes:
    return f"audit-keys/{log}".encode()


def audit_checkpoints(log: str) -> bytes:
    return f"audit-checkpoint/{log}/".encode()


def audit_checkpoint(log: str, size: int) -> bytes:
    return f"audit-checkpoint/{log}/{size:016x}".encode()


def audit_tiles(log: str) -> bytes:
    return f"audit-tile/{log}/".encode()


def audit_tile(log: str, number: int) -> bytes:
    return f"audit-tile/{log}/{number:016x}".encode()


def record_policy(name: StreamName) -> bytes:
    """The mark that the operator has set the policy of one of ``RECORD_STREAMS``."""
    return b"erasures-policy" if name == ERASURE_FEED else b"audit-policy"


def graces(name: StreamName) -> bytes:
    return f"grace/{name}/".encode()


def grace(name: StreamName, at_ms: int) -> bytes:
    return f"grace/{name}/{at_ms:016x}".encode()


def moves(name: StreamName) -> bytes:
    return f"moved/{name}/".encode()


def moved(name: StreamName, at_ms: int, subscriber: str) -> bytes:
    return f"moved/{name}/{at_ms:016x}/{subscriber}".encode()


def points(name: StreamName) -> bytes:
    return f"point/{name}/".encode()


def point(name: StreamName, at_ms: int) -> bytes:
    return f"point/{name}/{at_ms:016x}".encode()


def point_ms(key: bytes) -> int:
    """The time of a ``point``. Raises ValueError or IndexError if the key has none."""
    return int(key.rsplit(b"/", 1)[1], 16)


def deleted_in(within: str) -> bytes:
    """Key prefix of the deleted streams whose data is kept: of a scope, or of one name (``SCOPE/STREAM``)."""
    return encoded(f"deleted/{within}/")


def deleted(name: StreamName, incarnation: int) -> bytes:
    return encoded(f"deleted/{name}/{incarnation:016x}")


def deleted_stream(key: bytes) -> tuple[StreamName, int]:
    """Name and incarnation in a key of ``deleted``. Raises ValueError, IndexError or InvalidNameError if it has
    none."""
    return _incarnation(key[len(DELETED) :])


def left_tables(name: StreamName, incarnation: int) -> bytes:
    """Key of the tables that a deleted stream has left behind; it outlives the stream."""
    return encoded(f"left-tables/{name}/{incarnation:016x}")


def left_tables_of(key: bytes) -> tuple[StreamName, int]:
    """As ``deleted_stream``, for a key of ``left_tables``."""
    return _incarnation(key[len(LEFT_TABLES) :])


def _incarnation(rest: bytes) -> tuple[StreamName, int]:
    name, incarnation = rest.decode().rsplit("/", 1)
    return StreamName.parse(name), int(incarnation, 16)


def deleted_rows(name: StreamName, incarnation: int) -> bytes:
    """Key prefix of the records of a deleted stream. Those of its mark stream also have the stream's incarnation."""
    return encoded(f"deleted-row/{name}/{incarnation:016x}/")


def deleted_row(name: StreamName, incarnation: int, key: bytes) -> bytes:
    """The key of a record while its stream is deleted. ``key`` is its usual key; a prefix gives the prefix of
    several."""
    kind, _, rest = key.partition(b"/")
    return deleted_rows(name, incarnation) + kind + rest[len(encoded(str(name))) :]


def live_row(name: StreamName, incarnation: int, row: bytes) -> bytes:
    """The usual key of the record under a ``deleted_row``."""
    kind, slash, rest = row[len(deleted_rows(name, incarnation)) :].partition(b"/")
    return kind + b"/" + encoded(str(name)) + slash + rest


def owned_by(name: StreamName) -> tuple[bytes, ...]:
    """Prefixes of the records that are deleted with a stream."""
    return (graces(name), moves(name), points(name))
