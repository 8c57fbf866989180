"""A controller in memory with the retention calls, for tests of faces: it keeps what it is given and plans one simple rule."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.app.cli.policies import sentence
from penstock.client.blocking.stores import Store
from penstock.core.planner_json.stream import encode_cut
from penstock.core.policies.levels import check_effective, pravega_view, resolve, validate
from penstock.model.answers.explanation import ExplainedRange, Explanation, GoneData
from penstock.model.answers.forecast import Forecast, HistoryPoint, ReachedLimit
from penstock.model.answers.plan import Holding, MovedSubscriber, RetentionPlan, RetentionRun
from penstock.model.answers.reclaim import PendingBytes, PendingReason, ReclaimReport
from penstock.model.answers.subscribers import SubscriberMove
from penstock.model.answers.undo import UndoneTruncations
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    ConflictError,
    InvalidCutError,
    NotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
    SubscriberNotFoundError,
)
from penstock.model.names import StreamName
from penstock.model.policies import StreamConfig
from penstock.model.retention import EMPTY, EffectivePolicy, HoldInfo, PolicyDocument, PolicyTarget
from penstock.model.segments import make_segment_id
from penstock.ports.control.streams import StreamDescription
from penstock.ports.control.subscribers import SubscriberInfo
from tests.example_answers import explanation, plan_answer
from tests.flat_control import FlatControl

NOW_MS = 1_800_000_000_000
FIRST = make_segment_id(0, 0)


@dataclass
class FakeStream:
    """One segment; events of ten bytes each. ``truncated``: heads before, for undo."""

    head: int = 0
    tail: int = 0
    truncated: list[int] = field(default_factory=list)
    subscribers: dict[str, int | None] = field(default_factory=dict)


class FakeController(FlatControl):
    """Rules: a maximum of bytes truncates; nothing else does."""

    def __init__(self, streams: Mapping[str, FakeStream]) -> None:
        self.made = {StreamName.parse(name): stream for name, stream in streams.items()}
        self.documents: dict[PolicyTarget, PolicyDocument] = {}
        self.held: dict[str, HoldInfo] = {}
        self.set_calls = 0

    def store(self) -> Store:
        """A blocking store over it."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Any]:
            yield None, self

        return Store(opened)

    def _of(self, name: StreamName) -> FakeStream:
        if name not in self.made:
            raise StreamNotFoundError("no such stream", stream=str(name))
        return self.made[name]

    def _cut(self, name: StreamName, offset: int) -> StreamCut:
        return StreamCut(name, {FIRST: offset})

    async def scopes_list(self, *, after: str = "", limit: int = 1000) -> Sequence[str]:
        return sorted({name.scope for name in self.made if name.scope > after})[:limit]

    async def streams_list(
        self, scope: str, *, tag: str | None = None, after: str = "", limit: int = 1000
    ) -> Sequence[str]:
        return sorted(name.stream for name in self.made if name.scope == scope and name.stream > after)[:limit]

    async def cuts_head(self, name: StreamName) -> StreamCut:
        return self._cut(name, self._of(name).head)

    async def cuts_tail(self, name: StreamName) -> StreamCut:
        return self._cut(name, self._of(name).tail)

    async def streams_describe(self, name: StreamName) -> StreamDescription:
        found = self._of(name)
        document = self.documents.get(name, EMPTY)
        return StreamDescription(
            stream=name, config=StreamConfig(retention=pravega_view(document)), epoch=0, sealed=False, segments=(),
            head=self._cut(name, found.head), tail=self._cut(name, found.tail), size_bytes=found.tail - found.head,
            written_bytes=found.tail, subscribers=await self.subscribers_describe(name), held_by="", disk_bytes=0,
            pending_free_bytes=0, freed_bytes=found.head,
        )  # fmt: skip

    async def policies_get(self, target: PolicyTarget) -> PolicyDocument:
        if isinstance(target, StreamName):
            self._of(target)
        elif target is not None and target not in await self.scopes_list():
            raise ScopeNotFoundError("no such scope", scope=target)
        return self.documents.get(target, EMPTY)

    async def policies_set(self, target: PolicyTarget, document: PolicyDocument) -> None:
        await self.policies_get(target)
        self.documents[target] = validate(document, target)
        self.set_calls += 1

    async def policies_effective(self, name: StreamName) -> EffectivePolicy:
        return await self._effective(name, self.documents.get(name, EMPTY))

    async def _effective(self, name: StreamName, document: PolicyDocument) -> EffectivePolicy:
        self._of(name)
        return resolve(document, self.documents.get(name.scope, EMPTY), self.documents.get(None, EMPTY))

    async def retention_plan(
        self, name: StreamName, *, change: PolicyDocument | None = None, at_ms: int | None = None
    ) -> RetentionPlan:
        found = self._of(name)
        policy = await self._effective(name, self.documents.get(name, EMPTY) if change is None else change)
        check_effective(policy, name)
        limit = policy.max_bytes
        over = 0 if limit is None else max(0, found.tail - found.head - limit)
        cut = found.head + over
        lost = {who: min(cut, found.tail) - at for who, at in found.subscribers.items() if at is not None and at < cut}
        evict = [
            MovedSubscriber(
                subscriber=who,
                start={"0#0": cut - size},
                end={"0#0": cut},
                bytes=size,
                events=size // 10,
                rule="maximum",
            )
            for who, size in lost.items()
        ]
        return plan_answer(
            id=str(name), rule="maximum" if over else "no-policy", why=f"frees {over} bytes",
            truncate={"0#0": cut} if over else None, frees_bytes=over, events=over // 10, policy=policy,
            sentence=sentence(policy), time_range_ms=[NOW_MS - 5000, NOW_MS] if over else None, next_due_ms=at_ms,
            evict=evict, held_by=[Holding(kind="no-policy", name="", bytes=found.tail - cut)],
        )  # fmt: skip

    async def retention_explain(self, name: StreamName, *, position: StreamCut | None = None) -> Explanation:
        found = self._of(name)
        plan = await self.retention_plan(name)
        decision = {field: getattr(plan, field) for field in RetentionRun.__struct_fields__}
        head, size = {"0#0": found.head}, found.tail - found.head
        held = ExplainedRange(
            kind="subscriber", name="s/g", bytes=size, start=head, end={"0#0": found.tail}, release_ms=NOW_MS
        )
        if position is None:
            return explanation(**decision, ranges=[held])
        if dict(position.positions)[FIRST] < found.head:
            gone = GoneData(at_ms=NOW_MS, rule="maximum", bytes=400, head=head, certain=False)
            return explanation(**decision, earliest_release_ms=None, gone=gone)
        return explanation(**decision, ranges=[held], earliest_release_ms=NOW_MS, gone=None)

    async def retention_run(self, name: StreamName) -> RetentionRun:
        decision = await self.retention_plan(name)
        found = self._of(name)
        if decision.frees_bytes:
            found.truncated.append(found.head)
            found.head += decision.frees_bytes
        return decision

    async def retention_reclaim(self, name: StreamName) -> ReclaimReport:
        self._of(name)
        return ReclaimReport(
            version=1, stream=str(name), at_ms=NOW_MS, disk_bytes=3_000_000, live_bytes=2_998_000, tiered_bytes=2_998_000,
            freed_bytes=1_000_000, pending_bytes=2000,
            pending=[PendingBytes(bytes=2000, why=PendingReason.GRACE, until_ms=NOW_MS + 1000)],
        )  # fmt: skip

    async def retention_forecast(self, name: StreamName) -> Forecast:
        found = self._of(name)
        limits = [
            ("retain.max_bytes", 1000, 400, "", NOW_MS + 12_000),
            ("backlog.max_bytes", 500, 500, "s/g", NOW_MS),
            ("disk", 9000, 500, "", None),
        ]
        return Forecast(
            version=1, stream=str(name), at_ms=NOW_MS, size_bytes=found.tail - found.head, append_bytes_per_s=50.0,
            release_bytes_per_s=0.0, window_ms=60_000,
            history=[
                HistoryPoint(NOW_MS - 60_000 * (10 - n), found.tail * n // 10, found.head * n // 10) for n in range(11)
            ],
            reaches=[
                ReachedLimit(
                    what=what, limit_bytes=limit, used_bytes=used, bytes_per_s=50.0, subscriber=who, at_ms=at_ms
                )
                for what, limit, used, who, at_ms in limits
            ],
        )  # fmt: skip

    async def retention_undo(self, name: StreamName, *, since_ms: int | None = None) -> UndoneTruncations:
        head = await self.retention_undo_last(name)
        return UndoneTruncations(
            stream=str(name),
            head=encode_cut(head.positions),
            head_cut=head.to_text(),
            truncations=1,
            bytes=10,
            protected_until_ms=1,
            subscribers=[],
            not_restored=[],
        )

    async def retention_undo_last(self, name: StreamName) -> StreamCut:
        found = self._of(name)
        if not found.truncated:
            raise ConflictError("no truncation can be taken back", stream=str(name))
        found.head = found.truncated.pop()
        return self._cut(name, found.head)

    async def holds_add(
        self, target: StreamName | str, *, owner: str, reason: str, until_ms: int | None = None,
        cut: StreamCut | None = None, hold_id: str | None = None,
    ) -> HoldInfo:  # fmt: skip
        stream = target if isinstance(target, StreamName) else None
        hold = HoldInfo(
            id=hold_id or f"hold-{len(self.held)}", scope=target.scope if isinstance(target, StreamName) else target,
            stream=stream, owner=owner, reason=reason, created_ms=NOW_MS, until_ms=until_ms, cut=cut,
        )  # fmt: skip
        self.held[hold.id] = hold
        return hold

    async def holds_list(self, target: PolicyTarget = None) -> Sequence[HoldInfo]:
        scope = target.scope if isinstance(target, StreamName) else target
        return [hold for _, hold in sorted(self.held.items()) if scope in (None, hold.scope)]

    async def erasures_list(self, stream: StreamName | None = None) -> Sequence[Mapping[str, Any]]:
        return ()

    async def holds_release(self, hold_id: str, *, owner: str) -> HoldInfo:
        if hold_id not in self.held:
            raise NotFoundError("no such hold", hold=hold_id)
        return replace(self.held.pop(hold_id), owner=owner)

    async def subscribers_describe(self, name: StreamName) -> Sequence[SubscriberInfo]:
        found = self._of(name)
        return [
            SubscriberInfo(
                name=who, generation=1, cut=None if at is None else self._cut(name, at), updated_ms=NOW_MS,
                lag_bytes=found.tail - (found.head if at is None else at),
                lag_events=(found.tail - (found.head if at is None else at)) // 10,
                lag_ms=None if at == found.tail else 1500, held_bytes=0 if at is None else found.tail - at,
            )
            for who, at in found.subscribers.items()
        ]  # fmt: skip

    async def subscribers_move(
        self, name: StreamName, subscriber: str, cut: StreamCut, *, dry_run: bool = False
    ) -> SubscriberMove:
        found = self._of(name)
        if subscriber not in found.subscribers:
            raise SubscriberNotFoundError("no such subscriber of the stream", subscriber=subscriber)
        was = found.subscribers[subscriber] or 0
        to = found.tail if cut.is_unbounded else dict(cut.positions)[FIRST]
        if to > found.tail:
            raise InvalidCutError("cut lies beyond the tail", offset=to)
        if not dry_run:
            found.subscribers[subscriber] = to
        return SubscriberMove(
            stream=str(name), subscriber=subscriber, start={"0#0": was}, end={"0#0": to},
            from_cut=self._cut(name, was).to_text(), lower_cut=self._cut(name, min(was, to)).to_text(),
            bytes=to - was, events=(to - was) // 10, passed_bytes=max(0, to - was), passed_events=max(0, to - was) // 10,
        )  # fmt: skip

    async def subscribers_remove(self, name: StreamName, subscriber: str) -> None:
        if self._of(name).subscribers.pop(subscriber, "absent") == "absent":
            raise SubscriberNotFoundError("no such subscriber of the stream", subscriber=subscriber)
