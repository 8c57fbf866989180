"""Settings of the controller: plain values, checked whole, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.transactions import LEASE_MAX_MS, LEASE_MIN_MS

DAY_MS = 86_400_000
DELETION_GRACE_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """How the controller works.

    lease_min_ms, lease_max_ms: what a transaction may ask for. Pravega's limits; a lower bound under 10 s serves tests.
    lifetime_leases, lifetime_max_ms: a transaction ends after that many leases, or that long, whatever is renewed.
    completed_ms: how long the outcome of a transaction is kept (24 h: a client may ask the day after).
    sweep_ms: pause between sweeps, which abort expired transactions and finish incomplete work (5 s: well inside the
        30 s within which every transaction must end). None: only when asked.
    retention_cycle_ms: pause between retention cycles (60 s). None: only when asked.
    retention_pause_ms: how soon after a subscriber has published its stream is looked at (500 ms: one cycle for a burst
        of publications, and space comes back within a second).
    evictions_max: eviction records kept for each stream (100).
    histories_max: histories kept in memory (4096 streams).
    audit_max_age_ms: how long entries of the audit stream are kept unless its policy says otherwise (7 years, which is what
        auditors ask for; at least a day).
    audit_outbox_max: audit entries that may wait for their append (4096: what half an hour of full disk makes); further
        ones are only counted, and the count is reported.
    clock_slack_ms: part of the time that the store was closed, by the wall clock, that does not age data (1 h: if the
    clock was set ahead by that much meanwhile, nothing is deleted early).
    buckets: number of parts in which streams are distributed over controllers (64); fixed at the first start.
    bucket_lease_ms: how long a controller may be silent before others take over its buckets. None: this is the only
        controller of its store, and takes over at once.
    deletion_grace_ms: how long a deleted stream can be restored; its disk space is freed afterwards (1 h: time to
    notice a mistake). 0: deletions are final. Internal streams have no grace. history_ms: least time between two points
    of a stream's history for plots and forecasts (10 min).
    scaling_minute_ms: how long a minute of scaling by rate is: its windows, its cool-down and its pauses. Shorter in tests.
        None: streams are scaled only on request.
    erasure_key: key of the digests that stand for values in cases of erasure. None: cases must keep the values.
    erasure_refused: returns why this store cannot erase now; None: it can.
    approval_ms: how long a request waits for approval before it expires (a week: a holiday of the approver).
    waits_for_rights: nothing that was approved is performed before ``use_rights``, because the requester may have lost the
        right while the store was closed.
    watermark_ms: pause between looks at what writers have noted (1 s: Pravega's own is 10 s). None: only when asked.
    """

    lease_min_ms: int = LEASE_MIN_MS
    lease_max_ms: int = LEASE_MAX_MS
    lifetime_leases: int = 1000
    lifetime_max_ms: int = DAY_MS
    completed_ms: int = DAY_MS
    sweep_ms: int | None = 5000
    retention_cycle_ms: int | None = 60_000
    retention_pause_ms: int = 500
    evictions_max: int = 100
    histories_max: int = 4096
    audit_max_age_ms: int = 7 * 365 * DAY_MS
    audit_outbox_max: int = 4096
    clock_slack_ms: int = 3_600_000
    buckets: int = 64
    bucket_lease_ms: int | None = None
    deletion_grace_ms: int = DELETION_GRACE_MS
    history_ms: int = 600_000
    scaling_minute_ms: int | None = 60_000
    watermark_ms: int | None = 1000
    erasure_key: bytes | None = field(default=None, repr=False)
    erasure_refused: Callable[[], str | None] = lambda: None
    approval_ms: int = 7 * DAY_MS
    waits_for_rights: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.lease_min_ms <= self.lease_max_ms:
            raise InvalidArgumentError(
                "lease limits are not ordered", lease_min_ms=self.lease_min_ms, lease_max_ms=self.lease_max_ms
            )
        for name in ("sweep_ms", "retention_cycle_ms", "scaling_minute_ms", "watermark_ms"):
            pause = getattr(self, name)
            if pause is not None and pause < 1:
                raise InvalidArgumentError("pause must be at least 1 ms", **{name: pause})
        for name in ("lifetime_leases", "lifetime_max_ms", "completed_ms", "evictions_max", "histories_max"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError("setting must be at least 1", **{name: getattr(self, name)})
        for name in ("retention_pause_ms", "clock_slack_ms", "deletion_grace_ms", "history_ms"):
            if getattr(self, name) < 0:
                raise InvalidArgumentError("setting is negative", **{name: getattr(self, name)})
        if self.audit_max_age_ms < DAY_MS:
            raise InvalidArgumentError(
                "audit entries must be kept for at least 1 day", audit_max_age_ms=self.audit_max_age_ms, least_ms=DAY_MS
            )
        if not 1 <= self.buckets <= 256 or self.audit_outbox_max < 1:
            raise InvalidArgumentError(
                "setting is out of range", buckets=self.buckets, audit_outbox_max=self.audit_outbox_max
            )
        if self.bucket_lease_ms is not None and self.bucket_lease_ms < 100:
            raise InvalidArgumentError("lease of buckets is under 100 ms", bucket_lease_ms=self.bucket_lease_ms)

    @property
    def tail_record_ms(self) -> int:
        """How old the newest record of a retention set must be before the loop adds another one.

        Half a cycle: each cycle records, and the cycles that publications bring forward record at most once more.
        """
        return (self.retention_cycle_ms or 60_000) // 2
