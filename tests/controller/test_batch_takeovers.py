"""A batch that was decided stays whole, also when another query takes over the writer's name before it is performed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from controller_world import STREAM, name_of, seg, with_stream, write_transaction
from memory_segments import MemorySegments

from penstock.codec.control.streams import DecisionRecord
from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.controller.metadata import overwrite
from penstock.model.errors import TransactionStateError, UnavailableError
from penstock.model.queries import QuerySource
from penstock.ports.control.transactions import TransactionStatus
from penstock.testing.fakes import FakeClock

OLD = QuerySource(query="q1", run="r1")
NEW = QuerySource(query="q2", run="r2", replaces="q1")
ROWS = (b"A" * 10, b"B" * 10, b"C" * 10)
TARGET = name_of(seg(0, 0))


class Failing(MemorySegments):
    """Does not merge the transaction ``bad`` while its container is away; merges one at a time."""

    bad: UUID | None = None

    async def merge(self, target: str, source: str) -> Any:
        if self.bad is not None and self.bad.hex in source:
            raise UnavailableError("container is away")
        return await super().merge(target, source)

    async def merge_run(self, target: str, sources: Sequence[str]) -> int:
        await self.merge(target, sources[0])
        return 1


async def _half_merged(controller: Controller, segments: Failing, merged: int) -> list[UUID]:
    """A batch of three that is decided, of which only the first ``merged`` are in the stream."""
    txns = [await write_transaction(controller, segments, rows) for rows in ROWS]
    segments.bad = txns[merged]
    with pytest.raises(UnavailableError):
        await controller.batches.commit(STREAM, writer="w", batch=0, transactions=txns, source=OLD)
    assert bytes(segments.segments[TARGET].data) == b"".join(ROWS[:merged])
    return txns


@pytest.mark.parametrize("aborted_by", ["client", "lease"])
@pytest.mark.parametrize("merged", [0, 1, 2])
def test_a_decided_batch_stays_whole_when_another_query_takes_the_name_over(merged: int, aborted_by: str) -> None:
    async def work() -> None:
        segments, clock = Failing(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            txns = await _half_merged(controller, segments, merged)
            with pytest.raises(UnavailableError):
                # The name is not taken over before what was decided under it is performed.
                await controller.batches.commit(STREAM, writer="w", batch=0, transactions=[], source=NEW)
            if aborted_by == "client":
                for txn in txns[merged:]:
                    with pytest.raises(TransactionStateError):
                        await controller.transactions.abort(STREAM, txn)
            else:
                clock.ms += 3_600_000
                await controller.sweep()
            segments.bad = None
            await controller.batches.commit(STREAM, writer="w", batch=0, transactions=[], source=NEW)
            await controller.sweep()
            states = [await controller.transactions.status(STREAM, txn) for txn in txns]
            assert states == [TransactionStatus.COMMITTED] * 3
            assert bytes(segments.segments[TARGET].data) == b"".join(ROWS)

    asyncio.run(work())


@pytest.mark.parametrize("commit", [True, False])
def test_the_first_decision_about_a_transaction_is_the_one_that_is_performed(commit: bool) -> None:
    """No entry of the queue undoes an earlier one, also where both are read together."""

    async def work() -> None:
        segments = Failing()
        async with with_stream(segments, 1) as controller:
            txn = await write_transaction(controller, segments, ROWS[0])
            puts = [
                overwrite(keys.queue_entry(STREAM, place), DecisionRecord(commit=verdict, transactions=(txn,)))
                for place, verdict in enumerate([commit, not commit])
            ]
            await segments.table_update(keys.TABLE, puts)
            await controller.streams.seal(STREAM)
            assert bytes(segments.segments[TARGET].data) == (ROWS[0] if commit else b"")
            wanted = TransactionStatus.COMMITTED if commit else TransactionStatus.ABORTED
            assert await controller.transactions.status(STREAM, txn) is wanted

    asyncio.run(work())
