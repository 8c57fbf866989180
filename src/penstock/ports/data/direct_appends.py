"""Ways to append that cost less than ``Segments.append``. A store offers those that it can."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias
from uuid import UUID

from penstock.ports.data.segments import Append, AppendDone
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


SubmitAppend: TypeAlias = Callable[[Append, AppendDone], None]
OpenDirect: TypeAlias = Callable[[str, UUID], Awaitable[DirectLine]]


class DirectAppends(Protocol):
    """Each is None where the store does not offer it. A wrapper of a store that changes ``append`` sets those to None, or
    changes them as well."""

    @property
    def submit_append(self) -> SubmitAppend | None:
        """``submit_append(request, done)`` enqueues at once. ``done`` is called exactly once, from the event loop, in order
        of submission per segment, with the result or with what ``append`` would have raised. Never raises; the segment must
        have been set up."""
        ...

    @property
    def withdraw_appends(self) -> Callable[[str, UUID], None] | None:
        """``withdraw_appends(segment, writer)`` drops the appends that the writer submitted and no caller waits for. ``done``
        is not called for appends that were not sent; those that were sent may or may not be stored. None: no append waits
        for a store to come back, so there is nothing to drop."""
        ...

    @property
    def open_direct(self) -> OpenDirect | None:
        """``open_direct(segment, writer)`` sets the writer up on a line of its own, for a thread of the caller that sends
        appends and reads acknowledgements itself. Raises NotConnectedError, and what ``setup_append`` raises."""
        ...
