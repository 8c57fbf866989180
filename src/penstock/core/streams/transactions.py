"""Transactions: ids, leases, and what each verb decides from the state it finds.

Every decision here is taken once, by a compare-and-set on the record it was taken from; the shell only performs it.
Source: docs/design/0035-transactions.md, "Transactions".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from penstock.codec.control.streams import BatchPin, BatchRecord, CompletedRecord, TransactionRecord, TransactionState
from penstock.core.streams.history import EpochRecord
from penstock.core.streams.query_source import BatchPlace, classify_batch
from penstock.model.errors import InvalidArgumentError, TransactionNotFoundError, TransactionStateError
from penstock.model.queries import QuerySource
from penstock.model.segments import SegmentId, number_of
from penstock.model.values.dataclass import dataclass

_LOW_BITS = 63


def make_transaction_id(epoch: int, counter: int) -> UUID:
    """An id whose halves are both positive as signed 64-bit numbers: Pravega's Rust client breaks on negative ones.

    The upper half is ``epoch << 32`` and the upper bits of the counter, the lower half its lower 63 bits.
    """
    low, high = counter & ((1 << _LOW_BITS) - 1), counter >> _LOW_BITS
    if not (0 <= epoch < 1 << 31 and 0 <= high < 1 << 32):
        raise InvalidArgumentError("transaction id is out of range", epoch=epoch, counter=counter)
    return UUID(int=(epoch << 32 | high) << 64 | low)


def transaction_epoch(txn: UUID) -> int:
    """The epoch in which the transaction was begun."""
    return txn.int >> 96


def open_record(
    epoch: int,
    *,
    incarnation: int,
    now_ms: int,
    lease_ms: int,
    lifetime_leases: int,
    lifetime_max_ms: int,
    key: UUID | None = None,
) -> TransactionRecord:
    """A new transaction's record. Its whole life is limited, however often it is renewed. ``key``: it is shared under it."""
    lifetime = min(lifetime_leases * lease_ms, lifetime_max_ms)
    return TransactionRecord(
        state=TransactionState.OPEN,
        epoch=epoch,
        expires_ms=now_ms + min(lease_ms, lifetime),
        deadline_ms=now_ms + lifetime,
        key=key,
        incarnation=incarnation,
        begun_ms=now_ms,
    )


def is_stray(txn: UUID, record: TransactionRecord, *, incarnation: int, active_epoch: int) -> bool:
    """Whether the transaction was begun in an earlier stream of the name, which is deleted.

    Records of the first release do not name their stream. Epochs of a stream only grow, so a transaction of an epoch after
    the active one was not begun in this stream.
    """
    if record.incarnation is not None:
        return record.incarnation != incarnation
    return transaction_epoch(txn) > active_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFacts:
    """All that is stored about one transaction: its record while it lives, its outcome after, the batch that pins it."""

    txn: UUID
    record: TransactionRecord | None = None
    completed: CompletedRecord | None = None
    batch: BatchRecord | None = None

    @property
    def state(self) -> TransactionState | None:
        """None: unknown. A pinned transaction commits by the batch record that names it, in the same instant."""
        if self.completed is not None:
            return self.completed.state
        if self.record is None:
            return None
        if self.record.state is TransactionState.OPEN and self.is_decided_by_batch:
            return TransactionState.COMMITTING
        return self.record.state

    @property
    def is_decided_by_batch(self) -> bool:
        pin, batch = None if self.record is None else self.record.pin, self.batch
        return pin is not None and batch is not None and pin.batch == batch.batch and self.txn in batch.transactions


class Verb(enum.Enum):
    COMMIT = "commit"
    ABORT = "abort"


_DONE = {
    Verb.COMMIT: (TransactionState.COMMITTING, TransactionState.COMMITTED),
    Verb.ABORT: (TransactionState.ABORTING, TransactionState.ABORTED),
}


def must_decide(facts: TransactionFacts, verb: Verb) -> bool:
    """Whether the verb still has to be decided: True while open, False where it was decided before.

    Raises: TransactionNotFoundError; TransactionStateError where the opposite was decided.
    """
    state = facts.state
    if state is None:
        raise TransactionNotFoundError("no such transaction", txn=str(facts.txn))
    if state is TransactionState.OPEN:
        return True
    if state in _DONE[verb]:
        return False
    raise TransactionStateError(
        "transaction has been decided otherwise", txn=str(facts.txn), state=state.value, verb=verb.value
    )


class PingVerdict(enum.Enum):
    """Names are those of the port's ``PingStatus``."""

    OK = "ok"
    LEASE_TOO_LARGE = "lease too large"
    MAX_LIFETIME = "maximum lifetime exceeded"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


def decide_ping(facts: TransactionFacts, *, now_ms: int, lease_ms: int, lease_max_ms: int) -> PingVerdict:
    """``OK``: the lease may be renewed (``renewed_until``); nothing else changes anything."""
    state = facts.state
    if state is None or (facts.record is None and facts.completed is None):
        return PingVerdict.UNKNOWN
    if state in _DONE[Verb.COMMIT]:
        return PingVerdict.COMMITTED
    if state in _DONE[Verb.ABORT]:
        return PingVerdict.ABORTED
    if lease_ms > lease_max_ms:
        return PingVerdict.LEASE_TOO_LARGE
    if facts.record is not None and now_ms >= facts.record.deadline_ms:
        return PingVerdict.MAX_LIFETIME
    return PingVerdict.OK


def renewed_until(record: TransactionRecord, *, now_ms: int, lease_ms: int) -> int:
    """When the renewed lease ends: never later than the lifetime, never earlier than it would have."""
    return min(max(record.expires_ms, now_ms + lease_ms), record.deadline_ms)


def has_expired(facts: TransactionFacts, *, now_ms: int) -> bool:
    """Whether an open transaction has missed its lease."""
    return (
        facts.record is not None
        and facts.state is TransactionState.OPEN
        and now_ms >= min(facts.record.expires_ms, facts.record.deadline_ms)
    )


class BatchVerdict(enum.Enum):
    COMMIT = "commit"
    REPEATED = "repeated"
    SUPERSEDED = "superseded"


def decide_batch(
    known: BatchRecord | None,
    batch: int,
    offered: Sequence[TransactionFacts],
    source: QuerySource | None = None,
    *,
    writer: str = "",
) -> BatchVerdict:
    """What becomes of a batch that is offered for commit.

    ``REPEATED``: this very set was decided before, only its end may be missing. ``SUPERSEDED``: the writer has committed
    this batch, or a later one, otherwise. Raises: TransactionNotFoundError (one is unknown or was aborted),
    TransactionStateError (one was committed outside the batch), WriterInUseError and ConflictError (as ``classify_batch``).
    """
    if known is not None and known.batch == batch and set(known.transactions) == {facts.txn for facts in offered}:
        return BatchVerdict.REPEATED
    if classify_batch(known, batch, source, writer=writer) is BatchPlace.REPEAT:
        return BatchVerdict.SUPERSEDED
    for facts in offered:
        state = facts.state
        if state is TransactionState.OPEN:
            continue
        if state in _DONE[Verb.COMMIT]:
            raise TransactionStateError(
                "transaction was committed outside its batch", txn=str(facts.txn), state=state.value if state else None
            )
        raise TransactionNotFoundError(
            "transaction of a batch is not open any more", txn=str(facts.txn), state=state.value if state else None
        )
    return BatchVerdict.COMMIT


def pinned(record: TransactionRecord, writer: str, batch: int) -> TransactionRecord:
    """The record with the request of a batch to commit it."""
    return replace(record, pin=BatchPin(writer=writer, batch=batch))


def merge_targets(begun_in: EpochRecord, active: EpochRecord) -> Mapping[SegmentId, SegmentId] | None:
    """Into which active segment each segment of the transaction's epoch is merged; None where that takes a rolling commit.

    A duplicate of a segment bears its number and range: a stream whose active epoch is a duplicate of the transaction's
    takes the merge as it is.
    """
    current = {(number_of(item.segment), item.keys): item.segment for item in active.segments}
    targets: dict[SegmentId, SegmentId] = {}
    for item in begun_in.segments:
        target = current.get((number_of(item.segment), item.keys))
        if target is None:
            return None
        targets[item.segment] = target
    return targets if len(targets) == len(active.segments) else None


def commit_runs(order: Iterable[tuple[UUID, int]], *, longest: int) -> list[tuple[int, list[UUID]]]:
    """Cut the commit order into runs of one epoch each, as (epoch, transactions); the order is kept."""
    runs: list[tuple[int, list[UUID]]] = []
    for txn, epoch in order:
        if runs and runs[-1][0] == epoch and len(runs[-1][1]) < longest:
            runs[-1][1].append(txn)
        else:
            runs.append((epoch, [txn]))
    return runs
