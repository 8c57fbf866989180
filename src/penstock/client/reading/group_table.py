"""Where a reader group keeps its state: one value of one table segment, changed by compare-and-set. A second entry, whose
key holds the group's id, keeps late changes of an earlier group of the name out."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar
from uuid import UUID

from penstock.client.moments import Services
from penstock.client.reading.group_state import GroupState, Prepared, UndecidedError
from penstock.client.retry import FULL_S, Backoff, retrying
from penstock.model.errors import (
    AlreadyExistsError,
    BadKeyVersionError,
    CorruptDataError,
    EventTooLargeError,
    KeyNotFoundError,
    NotEmptyError,
    PenstockError,
    ReaderGroupNotFoundError,
    SegmentNotFoundError,
)
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.transactions import PositionCommit, TransactionStatus
from penstock.ports.data.tables import KEY_ABSENT, VALUE_MAX_BYTES, TableEntry, TablePut, TableRemoval
from penstock.ports.rng import Rng

log = logging.getLogger(__name__)

T = TypeVar("T")
STATE_KEY = b"state"


class _Entries(NamedTuple):
    state: TableEntry
    owner: TableEntry
    """Absent if an older program wrote the state."""


def owner_key(group_id: UUID | str) -> bytes:
    """The key of the entry that only this group's table has. Every change of the state is a change of this entry too."""
    return f"group/{group_id}".encode()


class GroupTable:
    """The state of one reader group. ``_GROUP`` is an internal name that neither Java's ``_RG`` groups nor the Rust
    client's ``<name>_kvtable`` can have."""

    def __init__(self, services: Services, rng: Rng, config: ReaderGroupConfig) -> None:
        self.full_name = config.full_name
        self._config = config
        self._id = str(config.id)
        self.table = f"{config.scope}/_GROUP{config.name}/0.#epoch.0"
        self._segments = services.segments
        self._controller = services.controller
        self._rng = rng
        self._decided: dict[UUID, bool] = {}
        """Prepared positions of which this process knows whether they are committed."""
        self._settled: dict[str, UUID] = {}
        """The last commit of each reader that this process has settled, and that the store may remember."""

    async def create(self, state: GroupState, is_current: Callable[[], Awaitable[bool]]) -> None:
        """Store the initial state, unless this group already has one.

        ``is_current``: whether the name still belongs to this group. It is asked after the state of another group was read,
        so only the state of an earlier group is replaced. Raises ReaderGroupNotFoundError if the name belongs to another.
        """
        value = state.encode()
        while True:
            # The table may exist: it belongs to this group, or to an earlier one of the same name.
            with suppress(AlreadyExistsError):
                await retrying(lambda: self._segments.create_table(self.table), self._rng)
            try:
                entries = await self._get()
                earlier = None if entries.state.version == KEY_ABSENT else GroupState.decode(entries.state.value).group
                if earlier == self._id:
                    return
                if not await is_current():
                    raise ReaderGroupNotFoundError("reader group was deleted and created again", group=self.full_name)
                if await self._put(value, entries):
                    if earlier is not None:
                        removal = TableRemoval(key=owner_key(earlier))
                        await retrying(partial(self._segments.table_remove, self.table, [removal]), self._rng)
                    return
            except SegmentNotFoundError:
                # A client that deletes an earlier group has just removed the empty table.
                continue

    async def load(self) -> GroupState:
        """The current state. Raises ReaderGroupNotFoundError (also if a later group has the name), UnavailableError."""
        return (await self._own())[0]

    async def _own(self) -> tuple[GroupState, _Entries]:
        """Return this group's state. In the state of a later group of the name, our readers would take its segments."""
        try:
            entries = await self._get()
        except SegmentNotFoundError as error:
            raise ReaderGroupNotFoundError("reader group was deleted", group=self.full_name) from error
        if entries.state.version == KEY_ABSENT:
            raise ReaderGroupNotFoundError("reader group has no state", group=self.full_name)
        state = GroupState.decode(entries.state.value)
        if state.group != self._id:
            raise ReaderGroupNotFoundError("reader group was deleted and created again", group=self.full_name)
        return state, entries

    async def update(self, change: Callable[[GroupState], T], *, full_s: float = FULL_S) -> tuple[GroupState, T]:
        """Apply ``change`` to a private copy and store it; repeat on a fresh copy if another client stored one first.

        ``change`` must be idempotent: it is applied again if an answer was lost, and after positions that a reader has
        prepared were settled. ``full_s``: how long to wait for space on a full disk. Raises ReaderGroupNotFoundError,
        StorageFullError, UnavailableError.
        """
        backoff = Backoff(self._rng)
        while True:
            state, entries = await self._own()
            settled = state.settle(self._decided)
            try:
                result = change(state)
            except UndecidedError as error:
                await self.settle(error.reader, error.prepared)
                continue
            value = state.encode()
            try:
                if value == entries.state.value or await self._put(value, entries, full_s):
                    await self._forget(state, settled)
                    return state, result
            except SegmentNotFoundError as error:
                raise ReaderGroupNotFoundError("reader group was deleted", group=self.full_name) from error
            await backoff.sleep()

    # --- positions that transactions commit ----------------------------------------------------------------

    async def decide(self, reader: str, prepared: Prepared, *, deadline_s: float) -> TransactionStatus:
        """Commit prepared positions and their transactions. The state must have them. Raises as
        ``Transactions.commit_with_positions``."""
        call = partial(
            self._controller.transactions.commit_with_positions,
            prepared.transactions,
            self._commit_of(reader, prepared.id),
        )
        status = await retrying(call, self._rng, deadline_s=deadline_s)
        self._decided[prepared.id] = True
        return status

    async def settle(self, reader: str, prepared: Prepared) -> bool:
        """Whether the positions are committed. If not, they never will be."""
        call = partial(
            self._controller.transactions.settle_positions,
            prepared.transactions,
            self._commit_of(reader, prepared.id),
        )
        self._decided[prepared.id] = is_committed = await retrying(call, self._rng)
        return is_committed

    async def _forget(self, state: GroupState, settled: Mapping[str, UUID]) -> None:
        """Forget decisions that the stored state has settled: here at once, in the store when the reader has left. The
        reader's next commit replaces its last one there."""
        waiting = state.prepared()
        self._settled.update(settled)
        self._decided = {commit: known for commit, known in self._decided.items() if commit in waiting}
        for reader in [name for name in self._settled if name not in state.members]:
            positions = self._commit_of(reader, self._settled.pop(reader))
            try:
                await retrying(partial(self._controller.transactions.release_positions, positions), self._rng)
            except PenstockError as error:
                # It stays until a reader of that name commits again, or the group is deleted.
                log.info(
                    "record of a decided commit could not be deleted",
                    extra={"group": self.full_name, "error": str(error)},
                )

    def _commit_of(self, reader: str, commit: UUID) -> PositionCommit:
        config = self._config
        return PositionCommit(scope=config.scope, group=config.name, group_id=config.id, reader=reader, id=commit)

    async def delete(self) -> None:
        """Remove this group's state, but not that of a later group of its name. No error if it does not exist."""
        try:
            while (entries := await self._get()).state.version != KEY_ABSENT:
                if not self._may_remove(entries.state):
                    return
                removals = [TableRemoval(key=STATE_KEY, version=entries.state.version)]
                if entries.owner.version != KEY_ABSENT:
                    removals.append(TableRemoval(key=entries.owner.key, version=entries.owner.version))
                # Another change came first: a report of a reader, or a later group.
                with suppress(BadKeyVersionError, KeyNotFoundError):
                    await retrying(partial(self._segments.table_remove, self.table, removals), self._rng)
            await retrying(lambda: self._segments.delete_table(self.table, must_be_empty=True), self._rng)
        except (SegmentNotFoundError, NotEmptyError):
            return

    def _may_remove(self, entry: TableEntry) -> bool:
        try:
            return GroupState.decode(entry.value).group == self._id
        except CorruptDataError:
            return True  # No group can read it. If it stayed, no group of this name could be created again.

    async def _get(self) -> _Entries:
        """Raises SegmentNotFoundError if the table does not exist."""
        wanted = [STATE_KEY, owner_key(self._id)]
        state, owner = await retrying(lambda: self._segments.table_get(self.table, wanted), self._rng)
        return _Entries(state, owner)

    async def _put(self, value: bytes, seen: _Entries, full_s: float = FULL_S) -> bool:
        """Store the state if the stored one is still the one that was read. Returns whether it was stored."""
        if len(value) > VALUE_MAX_BYTES:
            raise EventTooLargeError("reader group has too many segments", size_bytes=len(value), limit=VALUE_MAX_BYTES)
        puts = [
            TablePut(key=STATE_KEY, value=value, version=seen.state.version),
            # A table that was deleted and created again has the same versions again. Without this entry, a change of a
            # deleted group that comes late would replace the state of the next group. A put, because the wire has no checks.
            TablePut(key=seen.owner.key, value=b"", version=seen.owner.version),
        ]
        try:
            # A repeat after a lost answer finds another version and is refused: the caller then reads the state again.
            await retrying(lambda: self._segments.table_update(self.table, puts), self._rng, full_s=full_s)
        except (BadKeyVersionError, KeyNotFoundError):
            return False
        return True
