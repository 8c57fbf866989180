"""Planted bugs in the log on ledgers: each breaks one rule of a takeover, a roll or a deletion. No patch is made while a
coroutine waits: two of them would leave one behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from penstock.codec.bookie import FENCE, Code, Operation, decode_entry, encode_read
from penstock.codec.ledger_metadata import LedgerState
from penstock.core.cluster import ownership
from penstock.core.ledgers.recovery import Reply, Step, judge_code, judge_entry
from penstock.model.errors import FencedError, UnavailableError
from penstock.storage.ledgers import ledger_log, log_record, takeover
from penstock.storage.ledgers.ledger_log import LedgerLog
from penstock.storage.ledgers.log_record import HeldRecord
from penstock.storage.ledgers.metadata import closed_at
from penstock.storage.ledgers.removals import Removals
from penstock.storage.ledgers.takeover import Takeover
from penstock.storage.ledgers.writer import BookKeeperWriter


def _read_unfenced(ledger: int, entry: int, *, fence_key: bytes | None = None, flags: int = 0) -> bytes:
    return encode_read(ledger, entry, flags=flags & ~FENCE)


def recovery_without_fence() -> Any:
    """A recovery reads the ledger without fencing it."""
    return patch.object(takeover, "encode_read", _read_unfenced)


@contextmanager
def extend_before_fence() -> Iterator[None]:
    """The ledger before ends with what one bookie has of it, and its writer is never fenced."""

    async def find_end(self: Takeover, metadata: Any, homes: Any) -> tuple[int, int]:
        ledger, last = self._ledger, takeover.LAST_ENTRY
        for name in takeover.names_of(metadata):
            answer = await self._connections.call(name, (Operation.READ, ledger, last), [encode_read(ledger, last)])
            if answer is not None and answer.code == Code.OK:
                entry = decode_entry(answer.body, ledger=ledger, entry=last)
                return entry.entry, entry.length_bytes
        raise UnavailableError("no bookie answers")

    with patch.object(Takeover, "_find_end", find_end):
        yield


def one_bookie_is_believed() -> Any:
    """An entry does not exist if one bookie lacks it."""

    def judge(replies: Any, quorum: Any) -> Step:
        return Step.END if Reply.LACKS in replies else judge_entry(replies, quorum)

    return patch.object(takeover, "judge_entry", judge)


@contextmanager
def silence_is_no() -> Iterator[None]:
    """A bookie that does not answer lacks the entry."""

    def judge(code: int | None, *, undamaged: bool = False) -> Reply:
        found = judge_code(code, undamaged=undamaged)
        return Reply.LACKS if found is Reply.UNKNOWN else found

    original = Takeover._ask_one

    async def ask_one(self: Takeover, name: str, entry: int) -> Any:
        answer = await original(self, name, entry)
        return replace(answer, reply=Reply.LACKS) if answer.reply is Reply.UNKNOWN else answer

    with patch.object(takeover, "judge_code", judge), patch.object(Takeover, "_ask_one", ask_one):
        yield


@contextmanager
def found_entries_are_not_added_again() -> Iterator[None]:
    """What a recovery finds on one bookie counts as written."""

    async def add_again(self: Takeover, *_: Any) -> None:
        return

    with patch.object(Takeover, "_add_again", add_again):
        yield


@contextmanager
def closed_at_the_last_sent() -> Iterator[None]:
    """A roll closes the ledger behind the last entry that was sent."""
    original = BookKeeperWriter.close

    async def close(self: BookKeeperWriter) -> int:
        self._confirmed, self._confirmed_bytes = self._next - 1, self._length_bytes
        return await original(self)

    with patch.object(BookKeeperWriter, "close", close):
        yield


@contextmanager
def late_answers_count() -> Iterator[None]:
    """An answer acknowledges its frame although the ledger is being closed behind an earlier one."""

    def added(self: LedgerLog, of: Any, frame: Any, done: Any) -> None:
        if done.cancelled() or self._failure is not None:
            return
        if done.exception() is not None:
            self._start_roll()
        elif frame in self._unacknowledged:
            self._acknowledge(frame.address)

    async def close(self: BookKeeperWriter) -> int:
        last, length_bytes = self._confirmed, self._confirmed_bytes
        while True:
            metadata, version = await self._nodes.read(self._ledger)
            if metadata.state is LedgerState.CLOSED and metadata.last_entry == last:
                return last
            if metadata.state is not LedgerState.OPEN:
                raise FencedError("ledger was taken over")
            closed = closed_at(metadata, last=last, length_bytes=length_bytes)
            if await self._nodes.replace(self._ledger, closed, version) is not None:
                return last

    with patch.object(LedgerLog, "_added", added), patch.object(BookKeeperWriter, "close", close):
        yield


def everything_is_sent_again() -> Any:
    """After somebody else's recovery, all frames without acknowledgement are sent again."""
    return patch.object(ownership, "acknowledged_upto", lambda sent, last: 0)


def nothing_is_sent_again() -> Any:
    """After a roll, frames count as acknowledged if they were sent."""
    return patch.object(ownership, "acknowledged_upto", lambda sent, last: max((one for one, _ in sent), default=0))


def a_fence_is_a_deposition() -> Any:
    """Code 104 always stops the owner."""
    return patch.object(log_record, "is_owner", lambda found, owner: False)


@contextmanager
def a_zombie_rolls_on() -> Iterator[None]:
    """An owner overwrites the record of another one."""

    async def recognize(self: HeldRecord, wanted: Any) -> int:
        _, version = await self._nodes.read(self._path)
        return await self._nodes.set(self._path, log_record.encode_record(wanted), version=version)

    with (
        patch.object(HeldRecord, "_recognize", recognize),
        patch.object(log_record, "is_owner", lambda found, owner: True),
    ):
        yield


@contextmanager
def delete_before_publish() -> Iterator[None]:
    """Ledgers are deleted before the record no longer names them."""

    async def change(self: Removals, changed: Callable[[Any], Any]) -> None:
        before = self._held.record
        for ledger in ownership.unnamed(before, changed(before)):
            await self._ledgers.delete(ledger)
        await self._held.change(changed)

    with patch.object(Removals, "change", change):
        yield


@contextmanager
def the_newest_ledger_goes_too() -> Iterator[None]:
    """A truncation of everything drops all ledgers, and with them the last address."""

    def published(record: Any, *, truncated: int, catalogue: Any = None) -> Any:
        found = original(record, truncated=truncated, catalogue=catalogue)
        return replace(found, ledgers=found.ledgers[1:] if len(found.ledgers) > 1 else found.ledgers)

    original = ownership.published
    with patch.object(ledger_log.ownership, "published", published):
        yield


PLANTED: dict[str, Callable[[], Any]] = {
    one.__name__: one
    for one in (
        extend_before_fence,
        recovery_without_fence,
        one_bookie_is_believed,
        silence_is_no,
        found_entries_are_not_added_again,
        closed_at_the_last_sent,
        late_answers_count,
        everything_is_sent_again,
        nothing_is_sent_again,
        a_fence_is_a_deposition,
        a_zombie_rolls_on,
        delete_before_publish,
        the_newest_ledger_goes_too,
    )
}
