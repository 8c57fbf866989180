"""The objects that the parts of the controller share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from penstock.controller.histories import Histories
from penstock.controller.metadata import Metadata
from penstock.controller.pending_work import PendingWork
from penstock.controller.retention.audit import Audit
from penstock.controller.retention.clock import RetentionClock
from penstock.controller.retention.sets import RetentionSets
from penstock.controller.set_aside import SetAside
from penstock.controller.settings import ControllerSettings
from penstock.controller.stream_records import StreamRecords
from penstock.controller.streams.event_counts import EventCounts
from penstock.controller.tasks import NamedLocks, OwnedTasks
from penstock.controller.transactions.local import LocalTransactions
from penstock.controller.watermarks.due import DueWatermarks
from penstock.model.errors import CorruptDataError, StreamNotFoundError
from penstock.model.names import StreamName, segment_name
from penstock.model.retention import PolicyTarget
from penstock.model.values.dataclass import dataclass
from penstock.ports.access.authenticator import PresentRights
from penstock.ports.clock import Clock
from penstock.ports.data.service import SegmentService
from penstock.ports.data.tables import TableCheck, TablePut
from penstock.ports.rng import Rng
from penstock.ports.signing import SigningKeys
from penstock.ports.telemetry import Telemetry


class Attention(Protocol):
    """Reports to the retention loop which streams it must look at."""

    def dirty(self, name: StreamName) -> None:
        """Look at the stream soon."""
        ...

    def dirty_all(self, scope: str | None) -> None:
        """Look at all streams of the scope, or, for None, at all streams."""
        ...

    def due(self, name: StreamName, at_ms: int | None) -> None:
        """Look at the stream at that time, or earlier if it changes. None: only when it changes."""
        ...

    def kept(self, name: StreamName) -> None:
        """Truncated bytes of the stream are kept until their grace ends: free them then."""
        ...


class ScalingAttention(Protocol):
    """Where changes report streams whose scaling policy or segments have changed."""

    def changed(self, name: StreamName) -> None:
        """Look at the stream soon, if it scales by rate."""
        ...


class Unattended:
    """For a controller that runs retention cycles only on request."""

    def dirty(self, name: StreamName) -> None:
        return

    def dirty_all(self, scope: str | None) -> None:
        return

    def due(self, name: StreamName, at_ms: int | None) -> None:
        return

    def kept(self, name: StreamName) -> None:
        return

    def changed(self, name: StreamName) -> None:
        return


class Gate(Protocol):
    """What every removal that a person requests passes: it may need the approval of a second identity."""

    async def puts(
        self, action: str, target: PolicyTarget, arguments: Mapping[str, Any], *, targets: Sequence[str] | None = None
    ) -> Sequence[TablePut | TableCheck]:
        """What the batch of the action must contain. Raises ApprovalRequiredError, ConflictError.

        ``targets``: the streams and scopes of a case, or ``*``; the rules of all of them apply.
        """
        ...

    async def needs(self, action: str, target: PolicyTarget, *, targets: Sequence[str] | None = None) -> bool:
        """Whether the action needs approval now."""
        ...

    async def state(self, request: str) -> str | None:
        """The state of a request for approval; None: it is not known any more."""
        ...

    async def check_segment(self, stream: StreamName) -> None:
        """For removals by segment. Raises ApprovalRequiredError."""
        ...


class Open:
    """The gate before the controller has set its own."""

    async def puts(
        self, action: str, target: PolicyTarget, arguments: Mapping[str, Any], *, targets: Sequence[str] | None = None
    ) -> Sequence[TablePut | TableCheck]:
        return ()

    async def needs(self, action: str, target: PolicyTarget, *, targets: Sequence[str] | None = None) -> bool:
        return False

    async def state(self, request: str) -> str | None:
        return None

    async def check_segment(self, stream: StreamName) -> None:
        return


EarlierPassed = Callable[[Collection[str] | None], Awaitable[None]]
"""See ``Context.earlier_removals_passed``."""


async def _none_earlier(segments: Collection[str] | None) -> None:
    """No other controller has allowed a removal."""


@dataclass(slots=True, kw_only=True)
class Context:
    """Created once by ``wiring.context_of``; the controller's modules borrow it. It holds objects and has no logic."""

    metadata: Metadata
    segments: SegmentService
    clock: Clock
    rng: Rng
    telemetry: Telemetry
    settings: ControllerSettings
    streams: StreamRecords
    work: PendingWork
    histories: Histories
    sets: RetentionSets
    events: EventCounts
    audit: Audit
    set_aside: SetAside
    retention_clock: RetentionClock
    tasks: OwnedTasks
    signing: SigningKeys | None = None
    attention: Attention = field(default_factory=Unattended)
    gate: Gate = field(default_factory=Open)
    scaling: ScalingAttention = field(default_factory=Unattended)
    locks: NamedLocks = field(default_factory=NamedLocks)
    transactions: LocalTransactions = field(default_factory=LocalTransactions)
    watermarks: DueWatermarks = field(default_factory=DueWatermarks)
    rights: PresentRights | None = None
    rights_known: bool = False
    earlier_removals_passed: EarlierPassed = _none_earlier
    """Waits until every removal by segment that an earlier controller has allowed has ended: in these segments; None: in all.
    Raises UnavailableError."""

    async def removals_passed(self, target: str) -> None:
        """Wait until every removal by segment (``Holds.removal``) that has begun in the scope or stream has ended."""
        await self.locks.passed(f"removal/{target}/")

    async def every_removal_passed(self, target: StreamName | str | None) -> None:
        """As ``removals_passed``, and those that an earlier controller has allowed. None: in all scopes. Raises
        UnavailableError: whether these have ended is not known yet."""
        await self.earlier_removals_passed(await self._segments_of(target) if isinstance(target, StreamName) else None)
        await self.locks.passed("removal/" if target is None else f"removal/{target}/")

    async def _segments_of(self, name: StreamName) -> Collection[str] | None:
        """Names of all segments that the stream has had. None: they are not known."""
        view = await self.streams.find(name)
        if view is None:
            return None
        try:
            history = await self.histories.of(view)
        except (StreamNotFoundError, CorruptDataError):
            return None
        return {segment_name(name, one.segment) for epoch in history.epochs for one in epoch.segments}
