"""Cheaper ways to append than ``Segments.append``. Each is optional."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias
from uuid import UUID

from penstock.model.errors import PenstockError
from penstock.ports.data.segments import Append, AppendDone
from penstock.ports.files import Buffer


class DirectLine(Protocol):
    """One writer on one segment with its own connection, for one thread at a time and one append in flight.

    Any failure raises NotConnectedError, and the line cannot be used any more. Then ``SegmentService.setup_append``
    shows whether the append is stored, and a normal append shows why it was refused.
    """

    @property
    def last_number(self) -> int:
        """The writer's last event number, as the store knew it when the line was opened."""
        ...

    def send(self, data: Buffer, count: int, number: int) -> None:
        """Send an append of ``count`` events, the last of which is ``number``. Never waits."""
        ...

    def acknowledged(self, timeout_s: float) -> bool:
        """Wait until the append is durable. False: still unknown after ``timeout_s``; call again."""
        ...

    def close(self) -> None:
        """An append in flight may or may not become durable. Idempotent."""
        ...


FrameAppend: TypeAlias = tuple[str, UUID, bytes | memoryview, int, int, int]
"""An append without a condition: segment, writer, data (``len`` counts bytes), and ``event_number``, ``event_count`` and
``previous`` of ``Append``. A tuple, because a frame may hold thousands."""

AppendsDone = Callable[[Sequence[int], Sequence[int] | PenstockError], None]
"""Takes the places of some appends, and either the length of the segment after each, or the error that refuses all of
them."""

SubmitAppend: TypeAlias = Callable[[Append, AppendDone], None]
OpenDirect: TypeAlias = Callable[[str, UUID], Awaitable[DirectLine]]


class DirectAppends(Protocol):
    """Each is None if the store does not support it. A wrapper that changes ``append`` must set these to None or change
    them as well."""

    @property
    def submit_append(self) -> SubmitAppend | None:
        """``submit_append(request, done)`` enqueues at once. ``done`` is called exactly once, from the event loop, in order
        of submission per segment, with the result or with what ``append`` would have raised. Never raises; the segment must
        have been set up."""
        ...

    @property
    def withdraw_appends(self) -> Callable[[str, UUID], None] | None:
        """``withdraw_appends(segment, writer)`` drops appends of the writer that no caller waits for. ``done`` is not
        called for appends that were not sent; those that were sent may or may not be stored. None: no append waits for
        a store to come back, so there is nothing to drop."""
        ...

    @property
    def open_direct(self) -> OpenDirect | None:
        """``open_direct(segment, writer)`` opens a dedicated line for the writer, for a caller's thread that sends
        appends and reads acknowledgements itself. Raises NotConnectedError, and what ``setup_append`` raises."""
        ...
