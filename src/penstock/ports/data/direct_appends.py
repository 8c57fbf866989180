"""Appends that a thread of the caller's sends itself, and whose acknowledgements it reads itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias
from uuid import UUID

from penstock.ports.files import Buffer


class DirectLine(Protocol):
    """One writer on one segment, by a connection of its own, for one thread at a time and one append in flight.

    Whatever goes wrong raises NotConnectedError, and the line is of no more use: whether the append is stored is then told
    by ``SegmentService.setup_append``, and why it was refused by trying it again.
    """

    @property
    def last_number(self) -> int:
        """The writer's last event number, as the store knew it when the line was opened."""
        ...

    def send(self, data: Buffer, count: int, number: int) -> None:
        """Send an append of ``count`` events, the last of which is ``number``. Never waits."""
        ...

    def acknowledged(self, timeout_s: float) -> bool:
        """Wait until the append is durable. False: it is not known to be after ``timeout_s``; ask again."""
        ...

    def close(self) -> None:
        """What is in flight may or may not become durable. Idempotent."""
        ...


OpenDirect: TypeAlias = Callable[[str, UUID], Awaitable[DirectLine]]
"""``open_direct(segment, writer)`` of a segment service that offers it: sets the writer up on a line of its own. Raises
NotConnectedError, and what ``setup_append`` raises."""
