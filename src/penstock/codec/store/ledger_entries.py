"""Bytes of a log on ledgers: the header of a ledger, the parts of frames, and the record that lists the ledgers.

All integers are big-endian. Source: docs/formats/ledger-log.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from penstock.model.errors import CorruptDataError, VersionTooNewError

VERSION: Final = 1
MAGIC: Final = b"PsLH"
HEADER: Final = struct.Struct(">4sB3xQQ")
PART: Final = struct.Struct(">BxHHxxQ")
RECORD_FORMAT: Final = 1  # version of the record's JSON
PARTS_MAX: Final = 0xFFFF  # parts of one frame: their count is an unsigned 16-bit number


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHeader:
    """Entry 0 of a ledger: the epoch of its writer, and the address of its first frame."""

    epoch: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLedger:
    """``first``: the address of its first frame. ``last``: its last entry; None while it may be open."""

    ledger: int
    first: int
    last: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """What the coordinator keeps about a log. It changes by compare-and-set.

    ``uid``: drawn once, so that a store knows its log. ``owner``: drawn by each opening. ``ledgers``: in the order of
    their frames. Frames up to ``truncated`` are no longer needed.
    """

    uid: str
    owner: str = ""
    epoch: int = 0
    truncated: int = 0
    ledgers: tuple[ListedLedger, ...] = ()


def encode_header(header: LedgerHeader) -> bytes:
    return HEADER.pack(MAGIC, VERSION, header.epoch, header.first)


def decode_header(data: bytes, *, ledger: int) -> LedgerHeader:
    """Raises CorruptDataError, VersionTooNewError."""
    if len(data) != HEADER.size or data[:4] != MAGIC:
        raise CorruptDataError("ledger does not begin with a header of a log", ledger=ledger)
    _, version, epoch, first = HEADER.unpack(data)
    if version > VERSION:
        raise VersionTooNewError("ledger was written by a newer version", version=version, newest_known=VERSION)
    return LedgerHeader(epoch=epoch, first=first)


def parts_of(address: int, frame: bytes | memoryview, *, entry_max_bytes: int) -> Iterator[list[bytes | memoryview]]:
    """The entries of one frame, each as buffers."""
    room = entry_max_bytes - PART.size
    view = memoryview(frame)
    total = max(1, -(-len(view) // room))
    for index in range(total):
        yield [PART.pack(VERSION, index, total, address), view[index * room : (index + 1) * room]]


@dataclass(slots=True)
class FrameJoiner:
    """Joins the entries of one ledger to frames. A frame whose last parts are missing was not acknowledged, and is
    dropped: it follows again in the next ledger, or nowhere."""

    ledger: int
    next_address: int
    _parts: list[bytes] | None = None

    def add(self, data: bytes) -> tuple[int, bytes] | None:
        """Take the next entry; return address and frame once it is complete. Raises CorruptDataError: the entry does not
        continue what came before it; VersionTooNewError."""
        parts = self._parts if self._parts is not None else []
        if len(data) < PART.size:
            raise CorruptDataError("entry of a log is too short", ledger=self.ledger, address=self.next_address)
        version, index, total, address = PART.unpack_from(data)
        if version > VERSION:
            raise VersionTooNewError("entry was written by a newer version", version=version, newest_known=VERSION)
        if (index, address) != (len(parts), self.next_address) or index >= total:
            raise CorruptDataError(
                "entry of a log does not follow the one before", ledger=self.ledger, address=address, part=index
            )
        parts.append(data[PART.size :])
        if len(parts) < total:
            self._parts = parts
            return None
        self._parts = None
        self.next_address += 1
        return address, parts[0] if total == 1 else b"".join(parts)


def encode_record(record: LogRecord) -> bytes:
    """JSON, with sorted keys."""
    ledgers = [{"id": one.ledger, "first": one.first, "last": one.last} for one in record.ledgers]
    fields = {
        "format": RECORD_FORMAT,
        "uid": record.uid,
        "owner": record.owner,
        "epoch": record.epoch,
        "truncated": record.truncated,
        "ledgers": ledgers,
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def decode_record(data: bytes) -> LogRecord:
    """Inverse of ``encode_record``. Raises CorruptDataError, VersionTooNewError."""
    try:
        fields = json.loads(data)
        if fields["format"] > RECORD_FORMAT:
            raise VersionTooNewError(
                "record of the log is too new", version=fields["format"], newest_known=RECORD_FORMAT
            )
        ledgers = [_listed(one) for one in fields["ledgers"]]
        record = LogRecord(
            uid=str(fields["uid"]),
            owner=str(fields["owner"]),
            epoch=int(fields["epoch"]),
            truncated=int(fields["truncated"]),
            ledgers=tuple(ledgers),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptDataError("record of the log cannot be read", cause=repr(error)) from error
    check_order(record.ledgers)
    return record


def check_order(ledgers: Sequence[ListedLedger]) -> None:
    """Raises CorruptDataError unless the ledgers' first addresses never decrease, and only the newest can be open."""
    firsts = [one.first for one in ledgers]
    if firsts != sorted(firsts) or any(one.last is None for one in ledgers[:-1]):
        raise CorruptDataError("ledgers of the log are not in order", ledgers=tuple(one.ledger for one in ledgers))


def below(ledgers: Iterable[ListedLedger], upto: int) -> list[ListedLedger]:
    """The ledgers all of whose frames have addresses up to ``upto``; never the newest."""
    listed = list(ledgers)
    return [one for one, later in pairwise(listed) if later.first - 1 <= upto]


def _listed(fields: dict[str, int | None]) -> ListedLedger:
    ledger, first, last = fields["id"], fields["first"], fields["last"]
    if not isinstance(ledger, int) or not isinstance(first, int) or not isinstance(last, int | None):
        raise ValueError("ledger is not described by numbers")
    return ListedLedger(ledger=ledger, first=first, last=last)
