"""What a segment store offers, in process or over the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.ports.data.attributes import AttributeChange, Attributes
from penstock.ports.data.chunks import LeasedChunks
from penstock.ports.data.direct_appends import DirectAppends
from penstock.ports.data.erasing import Erasing
from penstock.ports.data.limits import Limits
from penstock.ports.data.segments import Append, AppendDone, SegmentBatches, SegmentRead, Segments
from penstock.ports.data.space import Space
from penstock.ports.data.tables import Tables
from penstock.ports.data.truncation import Truncation


class Watch(Protocol):
    """Somebody waits for a segment to change."""

    @property
    def gone(self) -> bool:
        """Whether the segment was deleted, or merged away. Another one may have its name by now."""
        ...

    def cancel(self) -> None:
        """Wait no longer. Does nothing once the change was told."""
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
        """Bring to tier 2 what is durable now, and let the log go. Raises what the storage raises."""
        ...

    async def merge(self, target: str, source: str, *, updates: Sequence[AttributeChange] = ()) -> int:
        """As ``SegmentService.merge``, together with changes of the target's attributes: all or nothing, also over a crash.
        Where the source was merged into this target already, no condition is asked. Raises ConditionFailedError too."""
        ...

    def read_now(self, name: str, offset: int, max_bytes: int) -> SegmentRead | None:
        """As ``read`` with ``wait=False``, of what is in memory. None: it takes waiting, or fails; ``read`` tells."""
        ...

    def watch(self, name: str, offset: int, changed: Callable[[], None]) -> Watch | None:
        """Call ``changed`` once, from the event loop, when the segment grows, is sealed, truncated or gone, or its store
        stops. None: ``offset`` does not lie at the tail of an open segment in memory, or too many wait; ``read`` tells.
        ``changed`` must be short: it stands between an append and the next."""
        ...

    def submit_append(self, request: Append, done: AppendDone) -> None:
        """See ``DirectAppends``."""
        ...
