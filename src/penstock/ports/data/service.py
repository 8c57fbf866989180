"""The interface of a segment store, in process or over the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.ports.data.attributes import AttributeChange, Attributes
from penstock.ports.data.chunks import LeasedChunks
from penstock.ports.data.direct_appends import DirectAppends
from penstock.ports.data.erasing import Erasing
from penstock.ports.data.limits import Limits
from penstock.ports.data.rates import Rates
from penstock.ports.data.segments import Append, AppendDone, SegmentBatches, SegmentRead, Segments
from penstock.ports.data.space import Space
from penstock.ports.data.tables import Tables
from penstock.ports.data.truncation import Truncation


class Watch(Protocol):
    """A pending wait for a segment to change."""

    @property
    def gone(self) -> bool:
        """Whether the segment was deleted or merged. Another one may have its name by now."""
        ...

    def cancel(self) -> None:
        """Stop waiting. Does nothing once the change was reported."""
        ...


class SegmentService(
    DirectAppends,
    SegmentBatches,
    Segments,
    Truncation,
    Attributes,
    Tables,
    LeasedChunks,
    Erasing,
    Limits,
    Rates,
    Space,
    Protocol,
):
    """A store of segments. All effects are durable when a call returns; all are safe to repeat.

    Every call may raise ContainerOfflineError, UnavailableError and its subclasses, and, where a segment is named,
    SegmentNotFoundError.
    """


class LocalSegmentService(SegmentService, Protocol):
    """A store in this process, which also takes appends and lets reads wait without a task or a future each."""

    async def flush(self) -> None:
        """Write everything durable now to tier 2, and truncate the log. Raises what the storage raises."""
        ...

    async def merge(self, target: str, source: str, *, updates: Sequence[AttributeChange] = ()) -> int:
        """As ``SegmentService.merge``, together with changes of the target's attributes: all or nothing, also across a
        crash. If the source was already merged into this target, no condition is checked. Also raises
        ConditionFailedError."""
        ...

    def read_now(self, name: str, offset: int, max_bytes: int) -> SegmentRead | None:
        """As ``read`` with ``wait=False``, from memory only. None: the read must wait or would fail; call ``read``."""
        ...

    def watch(self, name: str, offset: int, changed: Callable[[], None]) -> Watch | None:
        """Call ``changed`` once, from the event loop, when the segment grows, is sealed, truncated or deleted, or its
        store stops. None: ``offset`` is not the tail of an open segment in memory, or too many reads wait; call
        ``read``. ``changed`` must be fast: it delays the next append."""
        ...

    def submit_append(self, request: Append, done: AppendDone) -> None:
        """See ``DirectAppends``."""
        ...
