"""One look at a stream that scales by rate: gather its rates, decide, and perform the decision as any other scale."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.streams import StreamState
from penstock.controller.context import Context
from penstock.controller.metadata import changing
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.epochs import begin_scale, finish_scale
from penstock.controller.streams.workflows import exclusive, settled
from penstock.core.scaling.decision import ScalingDecision, ScalingFacts, decide_scaling, minutes_since_scale
from penstock.core.scaling.rates import MINUTE_MS
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.core.streams.scaling import plan_scale
from penstock.model.answers.scaling import ScalingChange, SegmentHeat, StreamScaling
from penstock.model.errors import UnsupportedError
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import ScaleType, ScalingPolicy
from penstock.model.scaling import Heat, ScalingAction, SegmentRates
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.rates import RateWatch

CHANGES_MAX = 10
"""Changes of a stream that are remembered, with their reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """A settled or unsettled stream with its facts and the decision that follows from them."""

    view: StreamView
    history: StreamHistory
    facts: ScalingFacts
    decision: ScalingDecision


class Scaler:
    """Keeps nothing that decides: a decision follows from the stream's record and from rates that the store has."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._minute_ms = ctx.settings.scaling_minute_ms or MINUTE_MS
        self._watched: dict[StreamName, RateWatch] = {}
        self._changes: dict[StreamName, deque[ScalingChange]] = {}

    async def look(self, name: StreamName) -> bool:
        """Bring up to date what the store measures of the stream, and scale it if its rates ask for it.

        Returns whether the stream is open and scales by rate; if not, nothing of it is measured any more.
        Raises ScopeNotFoundError, StreamNotFoundError.
        """
        view = await self._ctx.streams.get(name)
        if not _scales_by_rate(view):
            await self.forget(name)
            return False
        found = await self._looked(view)
        if found.decision.action is not ScalingAction.NONE:
            await self._ctx.tasks.run(self._scale(name))
        return True

    async def forget(self, name: StreamName) -> None:
        """Measure nothing of the stream any more."""
        self._changes.pop(name, None)
        watch = self._watched.pop(name, None)
        if watch is not None:
            await self._measure(replace(watch, segments=()))

    async def explain(self, name: StreamName) -> StreamScaling:
        """What would be decided now, and why. Changes nothing. Raises ScopeNotFoundError, StreamNotFoundError."""
        view = await self._ctx.streams.get(name)
        policy = view.record.config.scaling
        history = await self._ctx.histories.remaining(view)
        by_rate = _scales_by_rate(view)
        facts = self._facts(view, history, await self._rates(name, history) if by_rate else {})
        decision = decide_scaling(facts)
        reason = decision.reason
        if view.record.state is not StreamState.ACTIVE:
            reason = "The stream is sealed."
        return StreamScaling(
            stream=name,
            policy=policy,
            epoch=view.record.epoch,
            action=decision.action if by_rate else ScalingAction.NONE,
            reason=reason,
            segments=tuple(
                SegmentHeat(
                    range=item, heat=decision.heat.get(item.segment, Heat.NEW), rates=facts.rates.get(item.segment)
                )
                for item in (facts.active if by_rate else ())
            ),
            changes=tuple(self._changes.get(name, ())),
        )

    # --- facts ---------------------------------------------------------------------------------------------------

    async def _looked(self, view: StreamView) -> _Looked:
        history = await self._ctx.histories.of(view)
        policy = view.record.config.scaling
        # First the watch: rates that were measured for another policy, in events and not kB, are not this one's.
        await self._watch(view.name, policy, history, complete=True)
        rates = await self._rates(view.name, history)
        await self._watch(view.name, policy, history, complete=len(rates) == len(history.active.segments))
        facts = self._facts(view, history, rates)
        return _Looked(view=view, history=history, facts=facts, decision=decide_scaling(facts))

    def _facts(self, view: StreamView, history: StreamHistory, rates: dict[SegmentId, SegmentRates]) -> ScalingFacts:
        return ScalingFacts(
            policy=view.record.config.scaling,
            active=tuple(history.active.segments),
            rates=rates,
            minutes_since_scale=minutes_since_scale(
                history.active, rates, now_ms=self._ctx.clock.now_ms(), minute_ms=self._minute_ms
            ),
        )

    async def _rates(self, name: StreamName, history: StreamHistory) -> dict[SegmentId, SegmentRates]:
        texts = {segment_name(name, item.segment): item.segment for item in history.active.segments}
        try:
            found = await self._ctx.segments.segment_rates(list(texts))
        except UnsupportedError:
            return {}
        return {texts[text]: rates for text, rates in found.items()}

    async def _watch(self, name: StreamName, policy: ScalingPolicy, history: StreamHistory, *, complete: bool) -> None:
        """Let the store measure the active segments, where it does not do so already."""
        watch = RateWatch(
            stream=str(name),
            segments=[segment_name(name, item.segment) for item in history.active.segments],
            type=policy.type,
            target_rate=policy.target_rate,
            minute_ms=self._minute_ms,
        )
        if not complete or self._watched.get(name) != watch:
            await self._measure(watch)
            self._watched[name] = watch

    async def _measure(self, watch: RateWatch) -> None:
        await self._ctx.segments.measure_rates([watch])

    # --- the change ----------------------------------------------------------------------------------------------

    async def _scale(self, name: StreamName) -> None:
        """Decide again under the stream's lock, from the stream as it is then, and perform it."""

        async def attempt() -> None:
            view = await settled(self._ctx, name)
            if not _scales_by_rate(view):
                return
            found = await self._looked(view)
            if found.decision.action is not ScalingAction.NONE:
                await self._perform(found)

        async with exclusive(self._ctx, name):
            await changing(attempt)

    async def _perform(self, found: _Looked) -> None:
        ctx, view, decision = self._ctx, found.view, found.decision
        following = plan_scale(
            found.history,
            decision.sealed,
            decision.new_ranges,
            next_number=view.record.next_number,
            min_segments=found.facts.policy.min_segments,
            created_ms=ctx.clock.now_ms(),
        )
        entry = AuditEntry(kind=AuditKind.SCALE, target=str(view.name), fields=_told(found, following))
        begun = await begin_scale(ctx, view, following, *ctx.audit.puts([entry]))
        self._changes.setdefault(view.name, deque(maxlen=CHANGES_MAX)).append(
            ScalingChange(
                at_ms=following.created_ms,
                action=decision.action,
                reason=decision.reason,
                epoch=following.epoch,
                sealed=decision.sealed,
                opened=decision.new_ranges,
            )
        )
        done = await finish_scale(ctx, begun)
        ctx.telemetry.add("stream_scales")
        ctx.telemetry.add("rate_scales", 1, (decision.action.value,))
        ctx.audit.soon()
        # Limits of appends are those of segments: the new ones need theirs.
        ctx.attention.dirty(view.name)
        history = await ctx.histories.of(done)
        await self._watch(view.name, found.facts.policy, history, complete=False)


def _scales_by_rate(view: StreamView) -> bool:
    record = view.record
    return record.state is StreamState.ACTIVE and record.config.scaling.type is not ScaleType.FIXED


def _told(found: _Looked, following: EpochRecord) -> dict[str, object]:
    """What the audit stream records of the decision."""
    decision, rates = found.decision, found.facts.rates
    return {
        "rule": "by rate",
        "action": decision.action.value,
        "reason": decision.reason,
        "epoch": following.epoch,
        "sealed": [str(segment) for segment in decision.sealed],
        "opened": [[keys.low, keys.high] for keys in decision.new_ranges],
        "rates": {
            str(segment): [round(rate, 3) for rate in (one.two, one.five, one.ten, one.twenty)]
            for segment, one in rates.items()
            if segment in decision.sealed
        },
    }
