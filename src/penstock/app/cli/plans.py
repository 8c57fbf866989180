"""What a change of policy would remove, at any level, and the confirmation before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.app.cli.common.loss import Loss
from penstock.app.cli.common.policy_options import target_in_words
from penstock.app.cli.common.words import decision_words, hurt_words, removes, span
from penstock.core.policies.levels import merged, resolve, validate
from penstock.core.units import counted, format_size
from penstock.model.answers.plan import RetentionPlan
from penstock.model.errors import NotFoundError
from penstock.model.names import SYSTEM_SCOPE, StreamName
from penstock.model.retention import EMPTY, PolicyDocument, PolicyTarget
from penstock.model.values.dataclass import dataclass

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Store

_SHOWN_STREAMS = 20  # streams per list on the screen


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions for one stream, or for every stream below a level that the change reaches.

    ``decisions``: those that remove something, at most the 20 largest; for a single stream, its decision in any case.
    ``streams``: number of streams that were planned; ``removing``: how many would lose data. ``events``: None if
    unknown.
    """

    decisions: Sequence[tuple[str, RetentionPlan]]
    streams: int
    removing: int
    frees_bytes: int
    events: int | None
    single: bool = False

    @classmethod
    def of(cls, name: str, decision: RetentionPlan) -> Plan:
        """The plan of one stream."""
        return cls(
            decisions=[(name, decision)],
            streams=1,
            removing=int(removes(decision)),
            frees_bytes=decision.frees_bytes,
            events=decision.events,
            single=True,
        )

    def as_json(self) -> Any:
        """For a stream, its decision unchanged. For a level, the sums and the decisions by stream."""
        if self.single:
            return self.decisions[0][1]
        return {
            "streams": self.streams,
            "removing": self.removing,
            "frees_bytes": self.frees_bytes,
            "events": self.events,
            "decisions": dict(self.decisions),
        }

    @property
    def sentence(self) -> str:
        """The store's sentence on what the planned policy does, for a plan of one stream. Otherwise empty."""
        return self.decisions[0][1].sentence if self.single else ""

    @property
    def words(self) -> Mapping[str, object]:
        """For people: the decision for one stream; for a scope or the server, the loss of each stream, largest
        first."""
        if self.single:
            return decision_words(self.decisions[0][1])
        lines = [f"{name}: {stream_line(decision)}" for name, decision in self.decisions]
        if self.removing > len(self.decisions):
            lines.append(f"and {self.removing - len(self.decisions)} more")
        found = {"applies to": f"{counted(self.streams, 'stream')}; {self.removing} would lose data: {self.total}"}
        return {**found, "streams": lines} if lines else found

    @property
    def total(self) -> str:
        said = format_size(self.frees_bytes)
        return said if self.events is None else f"{said}, {counted(self.events, 'event')}"


def stream_line(decision: RetentionPlan) -> str:
    """What one stream would lose, on one line."""
    said = format_size(decision.frees_bytes)
    if decision.events is not None:
        said += f", {counted(decision.events, 'event')}"
    if decision.time_range_ms:
        said += f", written {span(decision.time_range_ms)}"
    return "; ".join([said, *hurt_words(decision)])


def plan_change(
    store: Store, target: PolicyTarget, before: PolicyDocument, after: PolicyDocument, *, at_ms: int | None = None
) -> Plan:
    """What the change of one level's document would remove. Changes nothing.

    Raises InvalidArgumentError if the document contradicts itself; conflicts with streams below are reported by
    ``set``.
    """
    after = validate(after, target)
    if isinstance(target, StreamName):
        return Plan.of(str(target), store.stream(str(target)).retention.plan(after, at=at_ms))
    found: list[tuple[str, RetentionPlan]] = []
    streams = removing = frees = 0
    events: int | None = 0
    for name, document in _reached(store, target, before, after):
        with suppress(NotFoundError):  # It was deleted meanwhile.
            decision = store.stream(name).retention.plan(document, at=at_ms)
            streams += 1
            if removes(decision):
                removing += 1
                frees += decision.frees_bytes
                events = None if events is None or decision.events is None else events + decision.events
                found.append((name, decision))
                found.sort(key=lambda item: -item[1].frees_bytes)
                del found[_SHOWN_STREAMS:]
    return Plan(decisions=found, streams=streams, removing=removing, frees_bytes=frees, events=events)


def _reached(
    store: Store, target: str | None, before: PolicyDocument, after: PolicyDocument
) -> Iterator[tuple[str, PolicyDocument]]:
    """Streams that the change affects, each with a document that sets everything that would apply."""
    server = EMPTY if target is None else store.policy(None).get()
    for scope in store.scopes() if target is None else [target]:
        if scope == SYSTEM_SCOPE:
            continue
        if target is None:
            own = store.policy(scope).get()
            was, will = merged(own, before), merged(own, after)
        else:
            was, will = merged(before, server), merged(after, server)
        for stream in store.streams(scope):
            name = f"{scope}/{stream}"
            with suppress(NotFoundError):
                document = store.stream(name).retention.get()
                if _applies(document, was) != _applies(document, will):
                    yield name, merged(document, will)


def _applies(stream: PolicyDocument, above: PolicyDocument) -> object:
    return replace(resolve(stream, above, EMPTY), origins={})


def loss_of(plan: Plan, action: str, target: PolicyTarget) -> Loss | None:
    """What the next cycle deletes after the policy is changed; None if it deletes nothing."""
    if plan.removing == 0:
        return None
    fields = {"frees_bytes": plan.frees_bytes, "events": plan.events, "streams": plan.removing}
    action = f"{action} the policy of {target_in_words(target)} and delete {plan.total} in the next cycle"
    return Loss(action=action, facts=plan.words, fields=fields)
