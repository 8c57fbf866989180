"""Retention in memory for the tests of the gRPC port: it keeps what it is given, and answers with what it was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.codec.control.effective_policy import PATHS
from penstock.codec.control.policy_document import encode_document
from penstock.model.answers.evidence import (
    AuditCheckpoint,
    AuditExport,
    AuditLogInfo,
    EvidenceDocument,
    KeyRotation,
)
from penstock.model.answers.explanation import Explanation, GoneData
from penstock.model.answers.facts import FactsHistory, FactsSegment, FactsSubscriber, StreamFacts
from penstock.model.answers.forecast import Forecast, HistoryPoint, ReachedLimit
from penstock.model.answers.plan import Holding, RetentionPlan, RetentionRun
from penstock.model.answers.reclaim import PendingBytes, PendingLease, PendingReason, ReclaimReport
from penstock.model.answers.subscribers import Eviction, SubscriberMove
from penstock.model.answers.undo import LostTruncation, RestoredSubscriber, UndoneTruncations
from penstock.model.cuts import StreamCut
from penstock.model.errors import AlreadyExistsError, ConflictError, NotFoundError, SubscriberNotFoundError
from penstock.model.names import StreamName
from penstock.model.retention import (
    EMPTY,
    Combine,
    EffectivePolicy,
    HoldInfo,
    Level,
    OnExceed,
    PolicyDocument,
    PolicyTarget,
)
from penstock.ports.control.streams import DeletedStream, RestoredStream
from penstock.ports.control.subscribers import SubscriberInfo
from tests.example_answers import explanation, plan_answer, run_answer
from tests.flat_control import FlatControl


class MemoryRetention(FlatControl):
    """The retention calls of a controller, without data."""

    documents: dict[PolicyTarget, PolicyDocument]
    made_holds: dict[str, HoldInfo]
    subscribed: dict[str, SubscriberInfo]

    def __init__(self) -> None:
        self.documents = {}
        self.made_holds = {}
        self.subscribed = {}

    def _stream(self, stream: StreamName) -> Any:
        raise NotImplementedError

    async def policies_get(self, target: PolicyTarget) -> PolicyDocument:
        if isinstance(target, StreamName):
            self._stream(target)
        return self.documents.get(target, EMPTY)

    async def policies_set(self, target: PolicyTarget, document: PolicyDocument) -> None:
        if isinstance(target, StreamName):
            self._stream(target)
        self.documents[target] = document

    async def policies_effective(self, stream: StreamName) -> EffectivePolicy:
        self._stream(stream)
        return EffectivePolicy(
            min_bytes=None,
            min_age_ms=1500,
            combine=Combine.ALL,
            max_age_ms=60_000,
            on_exceed=OnExceed.EVICT,
            evict_to=0.5,
            truncates=True,
            origins=dict.fromkeys(PATHS, Level.DEFAULT) | {"retain.min_age_s": Level.STREAM, "grace_s": Level.SERVER},
        )

    async def retention_run(self, stream: StreamName) -> RetentionRun:
        self._stream(stream)
        held = Holding(kind="subscriber", name="delays", bytes=50)
        return run_answer(truncate={"0#0": 10}, rule="size", frees_bytes=10, why="too large", held_by=[held])

    async def retention_plan(
        self, stream: StreamName, *, change: PolicyDocument | None = None, at_ms: int | None = None
    ) -> RetentionPlan:
        return plan_answer(rule=repr(change), next_due_ms=at_ms, policy=await self.policies_effective(stream))

    async def retention_explain(self, stream: StreamName, *, position: StreamCut | None = None) -> Explanation:
        policy = await self.policies_effective(stream)
        if position is None:
            return explanation(policy=policy)
        head = {str(k): v for k, v in sorted(position.positions.items())}
        gone = GoneData(at_ms=5, rule="manual", bytes=7, head=head, certain=True)
        return explanation(policy=policy, earliest_release_ms=None, gone=gone)

    async def retention_facts(self, stream: StreamName, *, change: PolicyDocument | None = None) -> StreamFacts:
        self._stream(stream)
        epoch = [FactsSegment(segment="0#0", low=0.0, high=1.0)]
        return StreamFacts(
            version=1, id=str(stream), now_ms=5, frequency_ms=0, truncated_at=None, truncating=False, retention_set=[],
            stream=FactsHistory(scope=stream.scope, name=stream.stream, epochs=[epoch], sealed={}), tail=None, hold=None,
            policy=None if change is None else encode_document(change),
            subscribers={"s/g": FactsSubscriber(cut={}, last_active_ms=4)},
        )  # fmt: skip

    async def retention_reclaim(self, stream: StreamName) -> ReclaimReport:
        self._stream(stream)
        lease = PendingLease(id="l", holder="report", until_ms=9)
        pending = [
            PendingBytes(bytes=5, why=PendingReason.GRACE, until_ms=7, leases=[]),
            PendingBytes(bytes=1, why=PendingReason.LEASE, leases=[lease]),
        ]
        return ReclaimReport(
            version=1, stream=str(stream), at_ms=3, disk_bytes=16, live_bytes=12, tiered_bytes=10, freed_bytes=10,
            pending_bytes=6, pending=pending,
        )  # fmt: skip

    async def retention_forecast(self, stream: StreamName) -> Forecast:
        self._stream(stream)
        disk = ReachedLimit(what="disk", limit_bytes=9, used_bytes=5, bytes_per_s=0.5, subscriber="", at_ms=None)
        return Forecast(
            version=1, stream=str(stream), at_ms=3, size_bytes=12, append_bytes_per_s=0.5, release_bytes_per_s=0.0,
            window_ms=2, reaches=[disk], history=[HistoryPoint(1, 22, 10), HistoryPoint(3, 24, 12)],
        )  # fmt: skip

    async def streams_list_deleted(self, scope: str | None = None) -> Sequence[DeletedStream]:
        return (
            DeletedStream(
                stream=StreamName(scope or "any", "gone"),
                incarnation=2,
                deleted_ms=5,
                restorable_until_ms=7,
                rule="manual",
                size_bytes=None,
                caller={"who": "ann"},
            ),
        )

    async def streams_restore(self, stream: StreamName, *, incarnation: int | None = None) -> RestoredStream:
        self._stream(stream)
        return RestoredStream(
            stream=stream, incarnation=incarnation or 9, sealed=True, size_bytes=3, dropped_subscribers=("s/g",)
        )

    async def evidence_log(self) -> AuditLogInfo:
        rotated = KeyRotation(old="a+1+x", new="a+2+y", signature="s")
        return AuditLogInfo(origin="a", size=3, key="a+2+y", rotations=[rotated])

    async def evidence_rotate_key(self) -> AuditLogInfo:
        return await self.evidence_log()

    async def evidence_checkpoint(self) -> AuditCheckpoint:
        return AuditCheckpoint(origin="a", size=3, note="a\n3\n", at_ms=5)

    async def evidence_checkpoints(self) -> Sequence[AuditCheckpoint]:
        return [await self.evidence_checkpoint()]

    async def evidence_consistency(self, before: int) -> EvidenceDocument:
        return EvidenceDocument(kind="consistency", text=f"{before}\n")

    async def evidence_export(self) -> AuditExport:
        return AuditExport(text="{}\n", offset=8, end=90)

    async def evidence_erasure(self, erasure: str) -> EvidenceDocument:
        raise NotFoundError("no such erasure", erasure=erasure)

    async def evidence_disposal(
        self, target: StreamName | str, *, from_ms: int = 0, to_ms: int | None = None
    ) -> EvidenceDocument:
        return EvidenceDocument(kind="disposal", text=f"{target} {from_ms} {to_ms}\n")

    async def evidence_hold(self, hold_id: str) -> EvidenceDocument:
        return EvidenceDocument(kind="hold", text=f"{hold_id}\n")

    async def retention_undo_last(self, stream: StreamName) -> StreamCut:
        self._stream(stream)
        raise ConflictError("nothing can be taken back", stream=str(stream))

    async def retention_undo(self, stream: StreamName, *, since_ms: int | None = None) -> UndoneTruncations:
        self._stream(stream)
        back = RestoredSubscriber(name="s/g", restored=False, reason="it left", at=None, wanted={"0#0": 1})
        lost = [] if since_ms is None else [LostTruncation(at_ms=since_ms, rule="manual", bytes=4)]
        return UndoneTruncations(
            stream=str(stream), head={"0#0": 0}, head_cut="text", truncations=2, bytes=10, protected_until_ms=7,
            subscribers=[back], not_restored=lost,
        )  # fmt: skip

    async def retention_list_evictions(self, stream: StreamName) -> Sequence[Eviction]:
        self._stream(stream)
        cut = {"0#0": 1}
        return [Eviction(at_ms=5, subscriber="s/g", start=None, end=cut, bytes=1, events=None, rule="ttl")]

    async def holds_add(
        self,
        target: StreamName | str,
        *,
        owner: str,
        reason: str,
        until_ms: int | None = None,
        cut: StreamCut | None = None,
        hold_id: str | None = None,
    ) -> HoldInfo:
        stream = target if isinstance(target, StreamName) else None
        scope = target.scope if isinstance(target, StreamName) else target
        chosen = hold_id or f"hold-{len(self.made_holds)}"
        if chosen in self.made_holds:
            raise AlreadyExistsError("hold exists", hold=chosen)
        self.made_holds[chosen] = HoldInfo(
            id=chosen,
            scope=scope,
            stream=stream,
            owner=owner,
            reason=reason,
            created_ms=1,
            until_ms=until_ms,
            cut=cut,
        )
        return self.made_holds[chosen]

    async def holds_list(self, target: PolicyTarget = None) -> Sequence[HoldInfo]:
        if target is None:
            return tuple(self.made_holds.values())
        scope = target.scope if isinstance(target, StreamName) else target
        return tuple(item for item in self.made_holds.values() if item.scope == scope)

    async def holds_release(self, hold_id: str, *, owner: str) -> HoldInfo:
        if hold_id not in self.made_holds:
            raise NotFoundError("no such hold", hold=hold_id)
        return replace(self.made_holds.pop(hold_id), owner=owner)

    async def subscribers_describe(self, stream: StreamName) -> Sequence[SubscriberInfo]:
        self._stream(stream)
        return (
            SubscriberInfo(name="s/silent", generation=0, cut=None, updated_ms=1, lag_bytes=9),
            SubscriberInfo(
                name="s/g",
                generation=2,
                cut=StreamCut(stream, {0: 5}),
                updated_ms=1,
                lag_bytes=95,
                lag_events=0,
                lag_ms=0,
                held_bytes=0,
                holes=3,
            ),
        )

    async def subscribers_move(
        self, stream: StreamName, subscriber: str, cut: StreamCut, *, dry_run: bool = False
    ) -> SubscriberMove:
        self._stream(stream)
        if subscriber != "s/g":
            raise SubscriberNotFoundError("reader group does not subscribe to the stream", subscriber=subscriber)
        end = {str(segment): offset for segment, offset in cut.positions.items()}
        return SubscriberMove(
            stream=str(stream), subscriber=subscriber, start={"0#0": 1}, end=end, from_cut="a", lower_cut=str(dry_run),
            bytes=95, events=1, passed_bytes=96, passed_events=None,
        )  # fmt: skip

    async def subscribers_remove(self, stream: StreamName, subscriber: str) -> None:
        self._stream(stream)
        if subscriber != "s/g":
            raise SubscriberNotFoundError("reader group does not subscribe to the stream", subscriber=subscriber)
