"""What the driver makes of the messages of a batch, and how a task holds its transaction."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import (
    NotConnectedError,
    PenstockError,
    QuotaHeldError,
    StorageFullError,
    StreamSealedError,
    TransactionStateError,
)
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.ports.control.transactions import PingStatus
from penstock.ports.data.imports import ImportedChunk
from penstock.spark.connect import Services
from penstock.spark.reasons import advised, reason
from penstock.spark.writing.batch_commit import groups_of
from penstock.spark.writing.keep_alive import KeepAlive
from penstock.spark.writing.messages import SharedWritten, TaskWritten
from tests.flat_control import FlatControl

SHARED = UUID(int=1)
KEY = UUID(int=2)
CHUNK = ImportedChunk(name="0/i1-1-1-0", size_bytes=9, event_count=1, index_crc32c=0)


def message(partition: int, way: str) -> TaskWritten:
    own = UUID(int=100 + partition) if way in ("wire", "blind") else None
    inline = b"rows" if way == "inline" else None
    shared = None
    if way == "direct":
        shared = SharedWritten(KEY, SHARED, ((SegmentId(0), (CHUNK,)),))
    if way == "blind":
        shared = SharedWritten(KEY, SHARED)
    return TaskWritten("w", 0, own, 1, 1, partition, inline, shared)


WAYS = st.lists(st.sampled_from(["inline", "direct", "wire", "blind", "none"]), max_size=12)


@given(ways=WAYS, seed=st.randoms(use_true_random=False))
def test_all_rows_of_a_batch_are_committed_once_in_the_order_of_partitions(ways: list[str], seed: Any) -> None:
    messages = [message(partition, way) for partition, way in enumerate(ways)]
    given_in = list(messages)
    seed.shuffle(given_in)
    groups = groups_of(given_in)
    order = [item.partition for group in groups for item in group.tasks]
    assert sorted(order) == [partition for partition, way in enumerate(ways) if way != "none"]
    for group in groups:
        kinds = {ways[item.partition] for item in group.tasks}
        if kinds & {"wire", "blind"}:
            assert len(group.tasks) == 1
            assert group.transaction == group.tasks[0].transaction
            assert group.key is None
        elif "direct" in kinds:
            assert (group.transaction, group.key) == (SHARED, KEY)
        else:
            assert (group.transaction, group.key) == (None, None)
    if "direct" not in ways or not {"wire", "blind"} & set(ways):
        assert order == sorted(order)
    # Nothing that could share a transaction is divided, and all chunks are in one.
    assert sum(group.key is not None for group in groups) == ("direct" in ways)
    assert all(not (a.transaction is None and b.transaction is None) for a, b in zip(groups, groups[1:], strict=False))


def test_chunks_of_two_transactions_are_no_batch() -> None:
    other = TaskWritten("w", 0, None, 1, 1, 1, None, SharedWritten(KEY, UUID(int=9), ((SegmentId(0), (CHUNK,)),)))
    with pytest.raises(TransactionStateError, match="ended while"):
        groups_of([message(0, "direct"), other])


class Pings(FlatControl):
    """A controller that is only asked whether a transaction is alive."""

    def __init__(self, *answers: PingStatus | PenstockError) -> None:
        self._answers = list(answers)
        self.asked = threading.Event()

    async def transactions_ping(self, stream: StreamName, txn: UUID, *, lease_ms: int) -> PingStatus:
        last = len(self._answers) == 1
        answer = self._answers[0] if last else self._answers.pop(0)
        if last:
            self.asked.set()
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    async def dial(self, address: str) -> Services:
        async def closed() -> None:
            await asyncio.sleep(0)

        return Services(cast(Any, self), cast(Any, None), closed)

    def keep(self) -> KeepAlive:
        kept = KeepAlive(self.dial, "here:1", 30)
        kept.hold(StreamName("s", "t"), SHARED)
        return kept


def test_a_lease_is_renewed_while_the_task_waits_for_rows() -> None:
    pings = Pings(PingStatus.OK, PingStatus.OK, PingStatus.OK)
    alive = pings.keep()
    assert pings.asked.wait(20)
    alive.check()
    alive.stop()


def test_a_task_learns_that_its_transaction_has_ended() -> None:
    pings = Pings(PingStatus.OK, PingStatus.ABORTED)
    alive = pings.keep()
    assert pings.asked.wait(20)
    alive.stop()
    with pytest.raises(TransactionStateError, match="ended while rows were written"):
        alive.check()


def test_a_controller_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.connect.RETRY_S", 0.0)
    pings = Pings(NotConnectedError("away"), PingStatus.OK)
    alive = pings.keep()
    assert pings.asked.wait(20)
    alive.stop()
    alive.check()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            StreamSealedError("stream is sealed", stream="s/t"),
            "StreamSealedError: stream is sealed; a sealed stream accepts no more events, write to another one. stream=s/t",
        ),
        (
            QuotaHeldError("backlog quota is reached, the append has to wait", used=5),
            "QuotaHeldError: backlog quota is reached, the append has to wait; let the slowest subscriber catch up, or raise the "
            "quota, then run the batch again. used=5",
        ),
        (
            StorageFullError("tier 2 is full", path="/x"),
            "StorageFullError: tier 2 is full; free space, or raise the store's budget, then run the batch again. path=/x",
        ),
        (NotConnectedError("no store answers", address="a:1"), "NotConnectedError: no store answers. address=a:1"),
    ],
)
def test_an_error_of_a_write_is_one_line_that_says_what_to_do(error: PenstockError, line: str) -> None:
    @advised
    def write() -> None:
        raise error

    @advised
    def outer() -> None:
        write()

    with pytest.raises(type(error)) as met:
        outer()
    assert reason(met.value) == line
