"""Where a reader group keeps its state: one value of one table segment, changed by compare-and-set."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar
from uuid import UUID

from penstock.client.group_state import GroupState
from penstock.client.retry import Backoff, retrying
from penstock.model.errors import (
    AlreadyExistsError,
    BadKeyVersionError,
    CorruptDataError,
    EventTooLargeError,
    KeyNotFoundError,
    NotEmptyError,
    ReaderGroupNotFoundError,
    SegmentNotFoundError,
)
from penstock.ports.rng import Rng
from penstock.ports.segment_service import (
    KEY_ABSENT,
    VALUE_MAX_BYTES,
    SegmentService,
    TableEntry,
    TablePut,
    TableRemoval,
)

T = TypeVar("T")
STATE_KEY = b"state"


class GroupTable:
    """The state of one reader group. ``_GROUP`` is an internal name that neither Java's ``_RG`` groups nor the Rust
    client's ``<name>_kvtable`` can have."""

    def __init__(self, segments: SegmentService, rng: Rng, scope: str, group: str, group_id: UUID) -> None:
        self.full_name = f"{scope}/{group}"
        self._id = str(group_id)
        self.table = f"{scope}/_GROUP{group}/0.#epoch.0"
        self._segments = segments
        self._rng = rng

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
                entry = await self._get()
                if entry.version != KEY_ABSENT and GroupState.decode(entry.value).group == self._id:
                    return
                if not await is_current():
                    raise ReaderGroupNotFoundError("reader group was deleted and created again", group=self.full_name)
                if await self._put(value, entry.version):
                    return
            except SegmentNotFoundError:
                # A client that deletes an earlier group has just removed the empty table.
                continue

    async def load(self) -> GroupState:
        """The current state. Raises ReaderGroupNotFoundError (also if a later group has the name), UnavailableError."""
        return (await self._own())[0]

    async def _own(self) -> tuple[GroupState, TableEntry]:
        """Return this group's state. In the state of a later group of the name, our readers would take its segments."""
        try:
            entry = await self._get()
        except SegmentNotFoundError as error:
            raise ReaderGroupNotFoundError("reader group was deleted", group=self.full_name) from error
        if entry.version == KEY_ABSENT:
            raise ReaderGroupNotFoundError("reader group has no state", group=self.full_name)
        state = GroupState.decode(entry.value)
        if state.group != self._id:
            raise ReaderGroupNotFoundError("reader group was deleted and created again", group=self.full_name)
        return state, entry

    async def update(self, change: Callable[[GroupState], T]) -> tuple[GroupState, T]:
        """Apply ``change`` to a private copy and store it; again on a fresh one where somebody was faster.

        ``change`` may be applied though an answer was lost, so it must bear being applied twice.
        """
        backoff = Backoff(self._rng)
        while True:
            state, entry = await self._own()
            result = change(state)
            value = state.encode()
            try:
                if value == entry.value or await self._put(value, entry.version):
                    return state, result
            except SegmentNotFoundError as error:
                raise ReaderGroupNotFoundError("reader group was deleted", group=self.full_name) from error
            await backoff.sleep()

    async def delete(self) -> None:
        """Remove this group's state, but not that of a later group of its name. No error if it does not exist."""
        try:
            while (entry := await self._get()).version != KEY_ABSENT:
                if not self._may_remove(entry):
                    return
                removal = TableRemoval(key=STATE_KEY, version=entry.version)
                # Another change came first: a report of a reader, or a later group.
                with suppress(BadKeyVersionError, KeyNotFoundError):
                    await retrying(partial(self._segments.table_remove, self.table, [removal]), self._rng)
            await retrying(lambda: self._segments.delete_table(self.table, must_be_empty=True), self._rng)
        except (SegmentNotFoundError, NotEmptyError):
            return

    def _may_remove(self, entry: TableEntry) -> bool:
        try:
            return GroupState.decode(entry.value).group == self._id
        except CorruptDataError:
            return True  # No group can read it. If it stayed, no group of this name could be created again.

    async def _get(self) -> TableEntry:
        """Raises SegmentNotFoundError if the table does not exist."""
        found = await retrying(lambda: self._segments.table_get(self.table, [STATE_KEY]), self._rng)
        return found[0]

    async def _put(self, value: bytes, version: int) -> bool:
        if len(value) > VALUE_MAX_BYTES:
            raise EventTooLargeError("reader group has too many segments", size_bytes=len(value), limit=VALUE_MAX_BYTES)
        put = TablePut(key=STATE_KEY, value=value, version=version)
        try:
            # A repeat after a lost answer finds another version and is refused: the caller then looks anew.
            await retrying(lambda: self._segments.table_update(self.table, [put]), self._rng)
        except (BadKeyVersionError, KeyNotFoundError):
            return False
        return True
