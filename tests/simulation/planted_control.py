"""Planted bugs of the control plane: each puts back a rule that removed, aborted or stopped what it had no right to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from penstock.client.reading.group_state import GroupState
from penstock.client.reading.group_table import GroupTable
from penstock.controller import keys, retention_keys
from penstock.controller.grace.deleted_streams import DeletedStreams
from penstock.controller.groups.subscribers import Subscribers
from penstock.controller.metadata import create
from penstock.controller.retention import facts, policies
from penstock.controller.retention.audit import Audit
from penstock.controller.segments import delete_segments
from penstock.controller.set_aside import SetAside
from penstock.controller.streams import cuts
from penstock.controller.streams.epochs import load_epoch
from penstock.controller.transactions import calls, commits, positions
from penstock.controller.transactions.calls import Transactions
from penstock.controller.transactions.sweeper import Sweeper
from penstock.core.streams.transactions import make_transaction_id, transaction_epoch
from penstock.model.errors import ReaderGroupNotFoundError
from penstock.model.names import segment_name, transaction_segment_name
from penstock.ports.data.tables import KEY_ABSENT, TableLength
from penstock.segmentstore.calls import segments as segment_calls
from penstock.segmentstore.calls import tables
from penstock.segmentstore.durability.recovery import Recovery
from penstock.segmentstore.tiering import reclaimer


@contextmanager
def policies_above_are_not_checked() -> Iterator[None]:
    """A cycle removes by the policies that it read, although the scope's or the server's has been replaced since."""
    original = policies.read_levels

    def read_levels(*args: Any) -> Any:
        return replace(original(*args), checks=())

    with patch.object(policies, "read_levels", read_levels), patch.object(facts, "read_levels", read_levels):
        yield


@contextmanager
def a_transaction_begins_in_any_stream_of_the_name() -> Iterator[None]:
    """The record of a transaction is written to the stream that has the name by then; nobody asks which one it is of."""

    async def begin(self: Any, name: Any, lease_ms: int) -> Any:
        ctx = self._ctx
        view = await self._open_stream(name, lease_ms)
        history = await ctx.histories.of(view)
        txn = make_transaction_id(history.active.epoch, await self._number())
        record = await self._record(view, history.active.epoch, lease_ms, key=None)
        await ctx.metadata.put(create(keys.transaction(name, txn), record))
        return view, txn, tuple(history.active.segments)

    async def strays(*_: Any) -> list[Any]:
        return []

    async def remove(ctx: Any, name: Any, txns: Any) -> None:
        for txn in txns:
            epoch = await load_epoch(ctx, name, transaction_epoch(txn))
            await delete_segments(
                ctx.segments,
                [transaction_segment_name(segment_name(name, item.segment), txn) for item in epoch.segments],
            )

    with (
        patch.object(Transactions, "_begin", begin),
        patch.multiple(commits, _strays=strays, remove_transaction_segments=remove),
    ):
        yield


class _ByWallClock:
    """A controller's context in which leases are counted by the wall clock."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    @property
    def retention_clock(self) -> Any:
        async def record_within(_: int) -> None:
            """Nothing: the wall clock needs no record."""

        return SimpleNamespace(now_ms=self._ctx.clock.now_ms, record_within=record_within)


@contextmanager
def leases_end_by_the_wall_clock() -> Iterator[None]:
    """A clock that is set ahead ends leases that have just begun."""
    begin, sweep = Transactions.__init__, Sweeper.__init__

    def transactions(self: Any, ctx: Any) -> None:
        begin(self, _ByWallClock(ctx))  # type: ignore[arg-type]

    def sweeper(self: Any, ctx: Any, *others: Any) -> None:
        sweep(self, _ByWallClock(ctx), *others)  # type: ignore[arg-type]

    with patch.object(Transactions, "__init__", transactions), patch.object(Sweeper, "__init__", sweeper):
        yield


@contextmanager
def graces_of_deleted_streams_end_by_the_wall_clock() -> Iterator[None]:
    """A clock that is set ahead frees streams that were just deleted."""
    begin = DeletedStreams.__init__

    def deleted(self: Any, ctx: Any) -> None:
        begin(self, _ByWallClock(ctx))  # type: ignore[arg-type]

    with patch.object(DeletedStreams, "__init__", deleted):
        yield


@contextmanager
def the_last_deleted_stream_is_known_by_the_wall_clock() -> Iterator[None]:
    """Where several streams of a name were deleted, a clock that is set back restores another one than the last."""
    choose = DeletedStreams._chosen

    async def chosen(self: Any, name: Any, incarnation: Any) -> Any:
        if incarnation is None:
            kept = [item for item in await self.names(name.scope) if item.stream == name]
            last = max(kept, key=lambda item: item.deleted_ms, default=None)
            incarnation = None if last is None else last.incarnation
        return await choose(self, name, incarnation)

    with patch.object(DeletedStreams, "_chosen", chosen):
        yield


def an_unreadable_record_stops_the_pass() -> Any:
    """A pass over the records of many owners fails at the first one that cannot be read."""
    return patch.multiple(
        SetAside,
        read=lambda _, entry, kind: kind.decode(entry.value),
        key=lambda _, entry, read: read(entry.key),
    )


def the_length_of_a_table_is_compared_too_early() -> Any:
    """The condition is looked at first, and something is awaited before the change is made."""
    original = tables.change

    async def change(container: Any, name: str, asked: Any) -> Any:
        segment = await segment_calls.find(container, name)
        error = tables._other_length(segment, [item.length for item in asked if isinstance(item, TableLength)])
        if error is not None:
            await segment_calls.refuse(container, segment, error)
        return await original(container, name, [item for item in asked if not isinstance(item, TableLength)])

    return patch.object(tables, "change", change)


def cuts_are_not_compared_with_the_tail() -> Any:
    """A subscriber may acknowledge what is written later."""
    return patch.object(cuts, "check_lengths", lambda *_: None)


def attempts_count_as_audit_entries() -> Any:
    """Room for audit entries is taken by each attempt to decide, whether or not anything was decided."""
    original = Audit.puts

    def puts(self: Audit, entries: Any) -> Any:
        found = original(self, entries)
        self._waiting.update(dict.fromkeys(put.key for put in found if put.key.startswith(retention_keys.OUTBOX)))
        return found

    return patch.object(Audit, "puts", puts)


@contextmanager
def groups_are_known_by_their_name() -> Iterator[None]:
    """Readers find the state of their group by its name, and take part in it, whichever group it is of by then."""

    async def own(self: GroupTable) -> Any:
        entry = await self._get()
        if entry.version == KEY_ABSENT:
            raise ReaderGroupNotFoundError("reader group has no state", group=self.full_name)
        return GroupState.decode(entry.value), entry

    with patch.object(GroupTable, "_own", own):
        yield


@contextmanager
def subscriptions_are_known_by_their_name() -> Iterator[None]:
    """What the program of a deleted group publishes counts for the new group of that name."""
    original = Subscribers._publish

    async def publish(self: Any, subscriber: str, group_id: Any, generation: Any, cut: Any, source: Any) -> None:
        await original(self, subscriber, None, generation, cut, source)

    with patch.object(Subscribers, "_publish", publish):
        yield


def readers_are_known_by_their_name() -> Any:
    """A reader that was replaced takes its replacement for itself: both hold all its segments."""
    return patch.object(GroupState, "has", lambda self, reader, incarnation: reader in self.members)


def recovery_expects_sound_rows() -> Any:
    """A segment that the log names is loaded, or the store does not start."""

    async def find(self: Recovery, uid: int) -> Any:
        segments = self._state.segments
        known = segments.by_uid.get(uid)
        if known is None:
            known = await segments.load(uid)
            if known is not None:
                segments.show(known)
        return known

    return patch.object(Recovery, "_find", find)


def freeing_expects_sound_rows() -> Any:
    """The code that frees space fails where the blocks of a truncated chunk cannot be read."""
    return patch.object(reclaimer, "CorruptDataError", KeyboardInterrupt)


def decided_positions_are_taken_for_undecided() -> Any:
    """The next reader drops positions whose commit was decided, because nobody looks for the decision."""

    async def never(ctx: Any, commit: Any) -> bool:
        return False

    return patch.object(positions, "_is_committed", never)


def undecided_positions_leave_their_transactions_open() -> Any:
    """The next reader drops positions that are not decided, and the commit is decided afterwards."""

    async def settle(ctx: Any, transactions: Any, commit: Any) -> bool:
        return await positions._is_committed(ctx, commit)

    return patch.object(calls, "settle_positions", settle)


PLANTED: dict[str, Callable[[], Any]] = {
    item.__name__: item
    for item in (
        policies_above_are_not_checked,
        a_transaction_begins_in_any_stream_of_the_name,
        leases_end_by_the_wall_clock,
        graces_of_deleted_streams_end_by_the_wall_clock,
        the_last_deleted_stream_is_known_by_the_wall_clock,
        an_unreadable_record_stops_the_pass,
        the_length_of_a_table_is_compared_too_early,
        cuts_are_not_compared_with_the_tail,
        attempts_count_as_audit_entries,
        groups_are_known_by_their_name,
        subscriptions_are_known_by_their_name,
        readers_are_known_by_their_name,
        recovery_expects_sound_rows,
        freeing_expects_sound_rows,
        decided_positions_are_taken_for_undecided,
        undecided_positions_leave_their_transactions_open,
    )
}
