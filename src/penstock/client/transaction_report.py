"""Describe one transaction: its state, and what it holds apart from its stream. It changes nothing."""

from __future__ import annotations

from uuid import UUID

from penstock.core.planner_json.stream import encode_cut
from penstock.core.streams.transactions import transaction_epoch
from penstock.core.units import counted
from penstock.model.answers.transactions import TransactionDescription
from penstock.model.errors import InvalidArgumentError, SegmentNotFoundError, TransactionNotFoundError
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.model.segments import SegmentId
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.transactions import OpenTransaction, TransactionStatus
from penstock.ports.data.service import SegmentService


def txn_of(given: object) -> UUID:
    """A transaction's id, from itself or its text. Raises InvalidArgumentError."""
    if isinstance(given, UUID):
        return given
    try:
        return UUID(hex=given if isinstance(given, str) else "")
    except ValueError as error:
        raise InvalidArgumentError("not the id of a transaction", transaction=repr(given)[:60]) from error


async def describe_transaction(
    segments: SegmentService, controller: ControlPlane, stream: StreamName, txn: UUID
) -> TransactionDescription:
    """See ``AsyncStream.describe_transaction``."""
    found = next((item for item in await controller.transactions.list_open(stream) if item.id == txn), None)
    if found is None:
        status = await controller.transactions.status(stream, txn)
        if status is TransactionStatus.UNKNOWN:
            raise TransactionNotFoundError(
                "no such transaction: it never was, or it ended more than a day ago", stream=str(stream), txn=str(txn)
            )
        return _described(stream, txn, status, None, {})
    sizes: dict[SegmentId, int] = {}
    for item in await controller.layout.of_epoch(stream, found.epoch):
        try:
            info = await segments.info(transaction_segment_name(segment_name(stream, item.segment), txn))
        except SegmentNotFoundError:
            continue
        sizes[item.segment] = info.length
    return _described(stream, txn, found.state, found, sizes)


def _described(
    stream: StreamName,
    txn: UUID,
    status: TransactionStatus,
    found: OpenTransaction | None,
    sizes: dict[SegmentId, int],
) -> TransactionDescription:
    left = counted(len(sizes), "segment")
    waits = {
        TransactionStatus.OPEN: "its writer, or the end of its lease",
        TransactionStatus.COMMITTING: f"the merge of {left}",
        TransactionStatus.ABORTING: f"the removal of {left}",
    }
    return TransactionDescription(
        stream=str(stream),
        transaction=str(txn),
        state=status.value,
        epoch=transaction_epoch(txn),
        begun_ms=None if found is None else found.begun_ms,
        expires_ms=None if found is None else found.expires_ms,
        deadline_ms=None if found is None else found.deadline_ms,
        writer="" if found is None else found.writer,
        batch=None if found is None else found.batch,
        shared=found is not None and found.shared,
        bytes=encode_cut(sizes),
        waits_for=waits.get(status, "nothing: it has ended"),
    )
