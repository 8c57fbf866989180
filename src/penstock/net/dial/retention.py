"""Retention of a remote control plane: policies, plans, holds, subscribers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.codec.control.effective_policy import decode_effective
from penstock.codec.control.policy_document import encode_document
from penstock.model.answers.explanation import Explanation
from penstock.model.answers.plan import RetentionPlan, RetentionRun
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.retention import EffectivePolicy, HoldInfo, PolicyDocument, PolicyTarget
from penstock.net.dial.grpc_connection import GrpcConnection
from penstock.net.grpc import mapping
from penstock.net.grpc import native_mapping as own
from penstock.net.grpc.mapping import make
from penstock.net.proto import Controller_pb2 as pb
from penstock.net.proto import native_pb2 as native
from penstock.ports.controller_service import DeletedStream, RestoredStream, SubscriberInfo


class RemoteRetention:
    """The retention calls of ``ControllerService``, with the same promises and errors."""

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection

    async def get_policy(self, target: PolicyTarget) -> PolicyDocument:
        reply: native.JsonAnswer = await self._connection.native("GetPolicy", own.target_message(target))
        return own.document_of(reply.json)

    async def set_policy(self, target: PolicyTarget, document: PolicyDocument) -> None:
        request = native.SetPolicyRequest(target=own.target_message(target), json=json.dumps(encode_document(document)))
        await self._connection.native("SetPolicy", request)

    async def effective_policy(self, stream: StreamName) -> EffectivePolicy:
        reply: native.JsonAnswer = await self._connection.native("EffectivePolicy", stream_request(stream))
        return decode_effective(own.json_of(reply.json))

    async def run_retention(self, stream: StreamName) -> RetentionRun:
        return own.answer_of(RetentionRun, await self._connection.native("RunRetention", stream_request(stream)))

    async def plan_retention(
        self, stream: StreamName, *, change: PolicyDocument | None = None, at_ms: int | None = None
    ) -> RetentionPlan:
        request = make(
            native.PlanRequest,
            stream=mapping.stream_message(stream),
            change=None if change is None else json.dumps(encode_document(change)),
            at_ms=at_ms,
        )
        return own.answer_of(RetentionPlan, await self._connection.native("PlanRetention", request))

    async def explain_retention(self, stream: StreamName, *, position: StreamCut | None = None) -> Explanation:
        request = native.ExplainRequest(
            stream=mapping.stream_message(stream),
            position=None if position is None else mapping.cut_message(position),
        )
        return own.answer_of(Explanation, await self._connection.native("ExplainRetention", request))

    async def retention_facts(self, stream: StreamName, *, change: PolicyDocument | None = None) -> Mapping[str, Any]:
        request = make(
            native.PlanRequest,
            stream=mapping.stream_message(stream),
            change=None if change is None else json.dumps(encode_document(change)),
        )
        return own.json_of((await self._connection.native("RetentionFacts", request)).json)

    async def reclaim_report(self, stream: StreamName) -> Mapping[str, Any]:
        return own.json_of((await self._connection.native("ReclaimReport", stream_request(stream))).json)

    async def forecast_retention(self, stream: StreamName) -> Mapping[str, Any]:
        return own.json_of((await self._connection.native("ForecastRetention", stream_request(stream))).json)

    async def list_deleted_streams(self, scope: str | None = None) -> Sequence[DeletedStream]:
        request = make(native.Target, scope=scope or "", server=scope is None)
        reply: native.JsonAnswer = await self._connection.native("ListDeletedStreams", request)
        return tuple(own.deleted_of(DeletedStream, item) for item in own.json_of(reply.json)["streams"])

    async def restore_stream(self, stream: StreamName, *, incarnation: int | None = None) -> RestoredStream:
        request = make(native.RestoreStreamRequest, stream=mapping.stream_message(stream), incarnation=incarnation)
        reply: native.JsonAnswer = await self._connection.native("RestoreStream", request)
        return own.deleted_of(RestoredStream, own.json_of(reply.json))

    async def undo_truncation(self, stream: StreamName) -> StreamCut:
        reply: pb.StreamCut = await self._connection.native("UndoTruncation", stream_request(stream))
        return mapping.cut_of(reply)

    async def undo_truncations(self, stream: StreamName, *, since_ms: int | None = None) -> Mapping[str, Any]:
        request = make(native.UndoRequest, stream=mapping.stream_message(stream), since_ms=since_ms)
        return own.json_of((await self._connection.native("UndoTruncations", request)).json)

    async def list_evictions(self, stream: StreamName) -> Sequence[Mapping[str, Any]]:
        reply: native.JsonAnswer = await self._connection.native("ListEvictions", stream_request(stream))
        found: list[Mapping[str, Any]] = own.json_of(reply.json)["evictions"]
        return found

    async def add_hold(
        self,
        target: StreamName | str,
        *,
        owner: str,
        reason: str,
        until_ms: int | None = None,
        cut: StreamCut | None = None,
        hold_id: str | None = None,
    ) -> HoldInfo:
        request = make(
            native.AddHoldRequest,
            target=own.target_message(target),
            owner=owner,
            reason=reason,
            until_ms=until_ms,
            cut=None if cut is None else mapping.cut_message(cut),
            id=hold_id,
        )
        return own.hold_of(await self._connection.native("AddHold", request))

    async def list_holds(self, target: PolicyTarget = None) -> Sequence[HoldInfo]:
        reply: native.Holds = await self._connection.native("ListHolds", own.target_message(target))
        return tuple(own.hold_of(item) for item in reply.holds)

    async def release_hold(self, hold_id: str, *, owner: str) -> HoldInfo:
        request = make(native.ReleaseHoldRequest, id=hold_id, owner=owner)
        return own.hold_of(await self._connection.native("ReleaseHold", request))

    async def describe_subscribers(self, stream: StreamName) -> Sequence[SubscriberInfo]:
        reply: native.Subscribers = await self._connection.native("DescribeSubscribers", stream_request(stream))
        return tuple(own.subscriber_of(item) for item in reply.subscribers)

    async def move_subscriber(
        self, stream: StreamName, subscriber: str, cut: StreamCut, *, dry_run: bool = False
    ) -> Mapping[str, Any]:
        request = make(
            native.MoveSubscriberRequest,
            stream=mapping.stream_message(stream),
            subscriber=subscriber,
            cut=mapping.cut_message(cut),
            dry_run=dry_run,
        )
        return own.json_of((await self._connection.native("MoveSubscriber", request)).json)

    async def remove_subscriber(self, stream: StreamName, subscriber: str) -> None:
        request = make(native.SubscriberRequest, stream=mapping.stream_message(stream), subscriber=subscriber)
        await self._connection.native("RemoveSubscriber", request)


def stream_request(stream: StreamName) -> native.StreamRequest:
    return native.StreamRequest(stream=mapping.stream_message(stream))
