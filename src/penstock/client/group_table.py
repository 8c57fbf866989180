"""Where a reader group keeps its state: one value of one table segment, changed by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from penstock.client.group_state import GroupState
from penstock.client.retry import Backoff, retrying
from penstock.model.errors import (
    AlreadyExistsError,
    BadKeyVersionError,
    EventTooLargeError,
    KeyNotFoundError,
    ReaderGroupNotFoundError,
    SegmentNotFoundError,
)
from penstock.ports.rng import Rng
from penstock.ports.segment_service import KEY_ABSENT, VALUE_MAX_BYTES, SegmentService, TableEntry, TablePut

T = TypeVar("T")
STATE_KEY = b"state"


class GroupTable:
    """The state of one reader group. ``_GROUP`` is an internal name that neither Java's ``_RG`` groups nor the Rust
    client's ``<name>_kvtable`` can have."""

    def __init__(self, segments: SegmentService, rng: Rng, scope: str, group: str) -> None:
        self.full_name = f"{scope}/{group}"
        self.table = f"{scope}/_GROUP{group}/0.#epoch.0"
        self._segments = segments
        self._rng = rng

    async def create(self, state: GroupState) -> None:
        """Store the initial state, unless this very group (``state.group``) has one already."""
        # It may exist: of this group, or of an earlier one of the same name, whose state is replaced below.
        with suppress(AlreadyExistsError):
            await retrying(lambda: self._segments.create_table(self.table), self._rng)
        value = state.encode()
        while True:
            entry = await self._get()
            if entry.version != KEY_ABSENT and GroupState.decode(entry.value).group == state.group:
                return
            if await self._put(value, entry.version):
                return

    async def load(self) -> GroupState:
        """The state as it is. Raises ReaderGroupNotFoundError, UnavailableError."""
        entry = await self._get()
        if entry.version == KEY_ABSENT:
            raise ReaderGroupNotFoundError("reader group has no state", group=self.full_name)
        return GroupState.decode(entry.value)

    async def update(self, change: Callable[[GroupState], T]) -> tuple[GroupState, T]:
        """Apply ``change`` to a private copy and store it; again on a fresh one where somebody was faster.

        ``change`` may be applied though an answer was lost, so it must bear being applied twice.
        """
        backoff = Backoff(self._rng)
        while True:
            entry = await self._get()
            if entry.version == KEY_ABSENT:
                raise ReaderGroupNotFoundError("reader group has no state", group=self.full_name)
            state = GroupState.decode(entry.value)
            result = change(state)
            value = state.encode()
            if value == entry.value or await self._put(value, entry.version):
                return state, result
            await backoff.sleep()

    async def delete(self) -> None:
        """Remove the state. No error where it is gone."""
        try:
            await retrying(lambda: self._segments.delete_table(self.table), self._rng)
        except SegmentNotFoundError:
            return

    async def _get(self) -> TableEntry:
        try:
            found = await retrying(lambda: self._segments.table_get(self.table, [STATE_KEY]), self._rng)
        except SegmentNotFoundError as error:
            raise ReaderGroupNotFoundError("reader group was deleted", group=self.full_name) from error
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
