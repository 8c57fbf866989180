"""The native calls about retention: policies, plans, holds, subscribers. Described in docs/formats/native-api.md."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.codec.control.effective_policy import encode_effective
from penstock.model.errors import InvalidArgumentError
from penstock.net.grpc import mapping
from penstock.net.grpc import native_mapping as own
from penstock.net.grpc.dispatch import Handler
from penstock.net.proto import Controller_pb2 as pb
from penstock.net.proto import native_pb2 as native
from penstock.ports.control.plane import ControlPlane


class RetentionCalls:
    """A part of the service ``penstock.v1.Native``."""

    def __init__(self, controller: ControlPlane) -> None:
        self._controller = controller

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "RunRetention": self.run,
            "PlanRetention": self.plan,
            "ExplainRetention": self.explain,
            "RetentionFacts": self.facts,
            "ReclaimReport": self.reclaim,
            "ForecastRetention": self.forecast,
            "ListEvictions": self.evictions,
            "ListDeletedStreams": self.deleted_streams,
            "RestoreStream": self.restore_stream,
            "UndoTruncation": self.undo,
            "UndoTruncations": self.undo_since,
            "GetPolicy": self.get_policy,
            "SetPolicy": self.set_policy,
            "EffectivePolicy": self.effective_policy,
            "AddHold": self.add_hold,
            "ListHolds": self.list_holds,
            "ReleaseHold": self.release_hold,
            "DescribeSubscribers": self.subscribers,
            "MoveSubscriber": self.move_subscriber,
            "RemoveSubscriber": self.remove_subscriber,
        }

    # --- the planner ------------------------------------------------------------------------------------------

    async def run(self, request: native.StreamRequest) -> native.RetentionDecision:
        return own.decision_message(await self._controller.retention.run(mapping.stream_of(request.stream)))

    async def plan(self, request: native.PlanRequest) -> native.RetentionDecision:
        decision = await self._controller.retention.plan(
            mapping.stream_of(request.stream),
            change=own.document_of(request.change) if request.HasField("change") else None,
            at_ms=request.at_ms if request.HasField("at_ms") else None,
        )
        return own.decision_message(decision)

    async def explain(self, request: native.ExplainRequest) -> native.RetentionDecision:
        position = own.cut_or_none(request, "position")
        stream = mapping.stream_of(request.stream)
        return own.decision_message(await self._controller.retention.explain(stream, position=position))

    async def facts(self, request: native.PlanRequest) -> native.JsonAnswer:
        change = own.document_of(request.change) if request.HasField("change") else None
        return own.json_message(
            await self._controller.retention.facts(mapping.stream_of(request.stream), change=change)
        )

    async def reclaim(self, request: native.StreamRequest) -> native.JsonAnswer:
        return own.json_message(await self._controller.retention.reclaim(mapping.stream_of(request.stream)))

    async def forecast(self, request: native.StreamRequest) -> native.JsonAnswer:
        return own.json_message(await self._controller.retention.forecast(mapping.stream_of(request.stream)))

    async def evictions(self, request: native.StreamRequest) -> native.JsonAnswer:
        found = await self._controller.retention.list_evictions(mapping.stream_of(request.stream))
        return own.json_message({"evictions": list(found)})

    async def undo_since(self, request: native.UndoRequest) -> native.JsonAnswer:
        since_ms = request.since_ms if request.HasField("since_ms") else None
        found = await self._controller.retention.undo(mapping.stream_of(request.stream), since_ms=since_ms)
        return own.json_message(found)

    async def deleted_streams(self, request: native.Target) -> native.JsonAnswer:
        found = await self._controller.streams.list_deleted(request.scope or None)
        return own.json_message({"streams": [own.deleted_fields(item) for item in found]})

    async def restore_stream(self, request: native.RestoreStreamRequest) -> native.JsonAnswer:
        incarnation = request.incarnation if request.HasField("incarnation") else None
        stream = mapping.stream_of(request.stream)
        return own.json_message(
            own.deleted_fields(await self._controller.streams.restore(stream, incarnation=incarnation))
        )

    async def undo(self, request: native.StreamRequest) -> pb.StreamCut:
        return mapping.cut_message(await self._controller.retention.undo_last(mapping.stream_of(request.stream)))

    # --- policies and holds -----------------------------------------------------------------------------------

    async def get_policy(self, request: native.Target) -> native.JsonAnswer:
        return own.document_message(await self._controller.policies.get(own.target_of(request)))

    async def set_policy(self, request: native.SetPolicyRequest) -> native.Done:
        await self._controller.policies.set(own.target_of(request.target), own.document_of(request.json))
        return native.Done()

    async def effective_policy(self, request: native.StreamRequest) -> native.JsonAnswer:
        policy = await self._controller.policies.effective(mapping.stream_of(request.stream))
        return own.json_message(encode_effective(policy))

    async def add_hold(self, request: native.AddHoldRequest) -> native.Hold:
        hold = await self._controller.holds.add(
            own.held_target_of(request.target),
            owner=request.owner,
            reason=request.reason,
            until_ms=request.until_ms if request.HasField("until_ms") else None,
            cut=own.cut_or_none(request, "cut"),
            hold_id=request.id if request.HasField("id") else None,
        )
        return own.hold_message(hold)

    async def list_holds(self, request: native.Target) -> native.Holds:
        found = await self._controller.holds.list(own.target_of(request))
        return native.Holds(holds=[own.hold_message(item) for item in found])

    async def release_hold(self, request: native.ReleaseHoldRequest) -> native.Hold:
        return own.hold_message(await self._controller.holds.release(request.id, owner=request.owner))

    # --- subscribers ------------------------------------------------------------------------------------------

    async def subscribers(self, request: native.StreamRequest) -> native.Subscribers:
        found = await self._controller.subscribers.describe(mapping.stream_of(request.stream))
        return native.Subscribers(subscribers=[own.subscriber_message(item) for item in found])

    async def move_subscriber(self, request: native.MoveSubscriberRequest) -> native.JsonAnswer:
        moved = await self._controller.subscribers.move(
            mapping.stream_of(request.stream),
            _named(request.subscriber),
            mapping.cut_of(request.cut),
            dry_run=request.dry_run,
        )
        return own.json_message(moved)

    async def remove_subscriber(self, request: native.SubscriberRequest) -> native.Done:
        await self._controller.subscribers.remove(mapping.stream_of(request.stream), _named(request.subscriber))
        return native.Done()


def _named(subscriber: str) -> str:
    if not subscriber:
        raise InvalidArgumentError("a subscriber needs a name", subscriber="")
    return subscriber
