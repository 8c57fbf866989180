"""Create the objects that the whole controller shares."""

from __future__ import annotations

from collections.abc import Callable

from penstock.controller.context import Context
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
from penstock.controller.tasks import OwnedTasks
from penstock.ports.clock import Clock
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng
from penstock.ports.signing import SigningKeys
from penstock.ports.telemetry import Telemetry


def context_of(
    segments: SegmentService,
    *,
    clock: Clock,
    rng: Rng,
    telemetry: Telemetry,
    settings: ControllerSettings,
    passed: Callable[[], float],
    signing: SigningKeys | None = None,
) -> Context:
    """The shared parts of a controller on ``segments``. Does no I/O and starts no task; the arguments are borrowed.

    ``passed`` counts elapsed seconds, for the age of data. Without ``signing``, nothing can be signed.
    """
    metadata = Metadata(segments)
    tasks = OwnedTasks()
    set_aside = SetAside(telemetry)
    audit = Audit(
        metadata=metadata,
        segments=segments,
        clock=clock,
        rng=rng,
        tasks=tasks,
        telemetry=telemetry,
        settings=settings,
        set_aside=set_aside,
    )
    return Context(
        metadata=metadata,
        segments=segments,
        clock=clock,
        rng=rng,
        telemetry=telemetry,
        settings=settings,
        streams=StreamRecords(metadata),
        work=PendingWork(metadata),
        histories=Histories(metadata, limit=settings.histories_max),
        sets=RetentionSets(metadata, set_aside, limit=settings.histories_max),
        events=EventCounts(segments),
        audit=audit,
        set_aside=set_aside,
        retention_clock=RetentionClock(metadata, clock, passed, set_aside, slack_ms=settings.clock_slack_ms),
        tasks=tasks,
        signing=signing,
    )
