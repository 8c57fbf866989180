"""Batching and retry settings of a writer."""

from __future__ import annotations

from typing import TypedDict

from penstock.client.options import COUNT_MAX, number
from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

BLOCK_BYTES_MIN = 1 << 10
BLOCK_BYTES_MAX = 4 << 20


class WriterOptions(TypedDict, total=False):
    """The fields of ``WriterSettings``, as keyword arguments of ``writer`` and ``transaction``."""

    block_bytes: int
    linger_s: float
    max_in_flight: int
    max_pending_bytes: int
    deadline_s: float


class GroupTransactionOptions(WriterOptions, total=False):
    """The keyword arguments of a reader's ``transaction``, but for its serializer."""

    lease_s: float
    settings: WriterSettings | None


class TransactionOptions(GroupTransactionOptions, total=False):
    """The keyword arguments of a stream's ``transaction``, but for its serializer."""

    writer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """How a writer batches and how long it tries.

    ``block_bytes``: size at which a block of events is closed; larger costs less per event and more memory per segment.
    ``linger_s``: how long events of a busy segment wait for more events; the first event of an idle one never waits.
    ``max_in_flight``: unacknowledged blocks per segment. ``max_pending_bytes``: events in memory; writes wait above.
    ``deadline_s``: how long to go on without any acknowledgement before the writer fails, with StorageFullError where the
    disk is full, else with DeadlineExceededError.
    """

    block_bytes: int = 1 << 20
    linger_s: float = 0.002
    max_in_flight: int = 4
    max_pending_bytes: int = 32 << 20
    deadline_s: float = 60.0

    def __post_init__(self) -> None:
        number("block_bytes", self.block_bytes, most=COUNT_MAX)
        if not BLOCK_BYTES_MIN <= self.block_bytes <= BLOCK_BYTES_MAX:
            raise InvalidArgumentError("a block must be 1 KiB to 4 MiB", block_bytes=self.block_bytes)
        number("linger_s", self.linger_s, least=0)
        number("deadline_s", self.deadline_s, above=0)
        number("max_in_flight", self.max_in_flight, least=1, most=COUNT_MAX)
        number("max_pending_bytes", self.max_pending_bytes, least=1, most=COUNT_MAX)
