"""Keys of what retention keeps beside a stream's own records; they lie in the controller's table like all others.

Source: docs/formats/metadata.md.
"""

from __future__ import annotations

from penstock.model.names import StreamName

CLOCK = b"clock/retention"
BUCKET_COUNT = b"buckets/count"
HEARTBEATS = b"controller/"
OUTBOX = b"audit/"
GAPS = b"audit-gap/"
GRACES = b"grace/"


def bucket(number: int) -> bytes:
    return f"bucket/{number:05}".encode()


def heartbeat(controller: str) -> bytes:
    return f"controller/{controller}".encode()


def outbox(life: str, number: int) -> bytes:
    return f"audit/{life}/{number:016x}".encode()


def gap(life: str) -> bytes:
    return f"audit-gap/{life}".encode()


def gap_told(life: str) -> bytes:
    return f"audit-told/{life}".encode()


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


def owned_by(name: StreamName) -> tuple[bytes, ...]:
    """Prefixes of all that goes with a stream when it is deleted."""
    return (graces(name), moves(name), points(name))
