"""A remote control plane that is used like one in process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID

from penstock.codec.answers import from_json
from penstock.codec.control.effective_policy import decode_effective
from penstock.codec.control.policy_document import encode_document
from penstock.model.answers.explanation import Explanation
from penstock.model.answers.facts import StreamFacts
from penstock.model.answers.forecast import Forecast
from penstock.model.answers.plan import RetentionPlan, RetentionRun
from penstock.model.answers.reclaim import ReclaimReport
from penstock.model.answers.subscribers import Eviction, SubscriberMove
from penstock.model.answers.undo import UndoneTruncations
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError, NotConnectedError, UnsupportedError
from penstock.model.names import StreamName
from penstock.model.policies import StreamConfig
from penstock.model.queries import QuerySource
from penstock.model.retention import EffectivePolicy, HoldInfo, PolicyDocument, PolicyTarget
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.net.dial.addresses import REFUSED_S, check_listens
from penstock.net.dial.grpc_connection import CALL_S, PATIENCE_S, GrpcConnection
from penstock.net.dial.line_calls import LineCalls
from penstock.net.dial.native import NativeSegments, StoreInfo
from penstock.net.grpc import mapping
from penstock.net.grpc import native_mapping as own
from penstock.net.grpc.mapping import make
from penstock.net.proto import Controller_pb2 as pb
from penstock.net.proto import native_pb2 as native
from penstock.net.wire.requests import CALLS_CAPABILITY
from penstock.ports.control.cuts import SegmentSpan
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.layout import Endpoint, EpochInfo, ScaleResult, ScaleStatus, Successor
from penstock.ports.control.scopes import PAGE_MAX
from penstock.ports.control.streams import DeletedStream, RestoredStream, StreamDescription
from penstock.ports.control.subscribers import SubscriberInfo
from penstock.ports.control.transactions import EventBlock, PingStatus, Transaction, TransactionStatus

_COMPLETED = {
    pb.ListCompletedTxnResponse.TxnResponse.COMMITTED: TransactionStatus.COMMITTED,
    pb.ListCompletedTxnResponse.TxnResponse.ABORTED: TransactionStatus.ABORTED,
}
_ANY_STATUS = range(8)


class _Remote:
    """The calls of one subject, over a connection that is borrowed."""

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection


class _Scopes(_Remote):
    async def create(self, scope: str) -> None:
        await self._connection.controller("createScope", make(pb.ScopeInfo, scope=scope))

    async def delete(self, scope: str) -> None:
        await self._connection.controller("deleteScope", make(pb.ScopeInfo, scope=scope))

    async def exists(self, scope: str) -> bool:
        reply: pb.ExistsResponse = await self._connection.controller(
            "checkScopeExists", make(pb.ScopeInfo, scope=scope)
        )
        return reply.exists

    async def list(self, *, after: str = "", limit: int = PAGE_MAX) -> Sequence[str]:
        request = pb.ScopesRequest(continuationToken=make(pb.ContinuationToken, token=after))
        reply: pb.ScopesResponse = await self._connection.controller("listScopes", request)
        return tuple(reply.scopes[:limit])


class _Streams(_Remote):
    async def create(self, stream: StreamName, config: StreamConfig) -> None:
        await self._connection.controller("createStream", mapping.config_message(stream, config))

    async def update(self, stream: StreamName, config: StreamConfig) -> None:
        await self._connection.controller("updateStream", mapping.config_message(stream, config))

    async def exists(self, stream: StreamName) -> bool:
        reply: pb.ExistsResponse = await self._connection.controller(
            "checkStreamExists", mapping.stream_message(stream)
        )
        return reply.exists

    async def config(self, stream: StreamName) -> StreamConfig:
        return mapping.config_of(
            await self._connection.controller("getStreamConfiguration", mapping.stream_message(stream))
        )

    async def list(
        self, scope: str, *, tag: str | None = None, after: str = "", limit: int = PAGE_MAX
    ) -> Sequence[str]:
        token = make(pb.ContinuationToken, token=after)
        info = make(pb.ScopeInfo, scope=scope)
        reply: pb.StreamsInScopeResponse
        if tag is None:
            request = pb.StreamsInScopeRequest(scope=info, continuationToken=token)
            reply = await self._connection.controller("listStreamsInScope", request)
        else:
            tagged = make(pb.StreamsInScopeWithTagRequest, scope=info, tag=tag, continuationToken=token)
            reply = await self._connection.controller("listStreamsInScopeForTag", tagged)
        return tuple(item.stream for item in reply.streams[:limit])

    async def seal(self, stream: StreamName) -> None:
        await self._connection.controller("sealStream", mapping.stream_message(stream))

    async def delete(self, stream: StreamName, *, seal: bool = False) -> None:
        if seal:
            # Pravega's call only deletes sealed streams. Sealing first would leave the stream sealed if a hold refuses.
            request = make(native.DeleteStreamRequest, stream=mapping.stream_message(stream), seal=True)
            await self._connection.native("DeleteStream", request)
        else:
            await self._connection.controller("deleteStream", mapping.stream_message(stream))

    async def truncate(self, stream: StreamName, cut: StreamCut) -> None:
        await self._connection.controller("truncateStream", mapping.cut_message(_cut_of(stream, cut)))

    async def describe(self, stream: StreamName) -> StreamDescription:
        return own.description_of(await self._connection.native("DescribeStream", stream_request(stream)))

    async def list_deleted(self, scope: str | None = None) -> Sequence[DeletedStream]:
        request = make(native.Target, scope=scope or "", server=scope is None)
        reply: native.JsonAnswer = await self._connection.native("ListDeletedStreams", request)
        return tuple(own.deleted_of(DeletedStream, item) for item in own.json_of(reply.json)["streams"])

    async def restore(self, stream: StreamName, *, incarnation: int | None = None) -> RestoredStream:
        request = make(native.RestoreStreamRequest, stream=mapping.stream_message(stream), incarnation=incarnation)
        reply: native.JsonAnswer = await self._connection.native("RestoreStream", request)
        return own.deleted_of(RestoredStream, own.json_of(reply.json))


class _Layout(_Remote):
    async def current(self, stream: StreamName) -> Sequence[SegmentRange]:
        reply: pb.SegmentRanges = await self._connection.controller(
            "getCurrentSegments", mapping.stream_message(stream)
        )
        return mapping.ranges_of(reply.segmentRanges)

    async def of_epoch(self, stream: StreamName, epoch: int) -> Sequence[SegmentRange]:
        request = make(pb.GetEpochSegmentsRequest, streamInfo=mapping.stream_message(stream), epoch=epoch)
        reply: pb.SegmentRanges = await self._connection.controller("getEpochSegments", request)
        return mapping.ranges_of(reply.segmentRanges)

    async def successors(self, stream: StreamName, segment: SegmentId) -> Sequence[Successor]:
        reply: pb.SuccessorResponse = await self._connection.controller(
            "getSegmentsImmediatelyFollowing", mapping.segment_message(stream, segment)
        )
        return tuple(mapping.successor_of(item) for item in reply.segments)

    async def ranges(self, stream: StreamName, segments: Sequence[SegmentId]) -> Mapping[SegmentId, KeyRange]:
        request = make(native.SegmentRangesRequest, stream=mapping.stream_message(stream), segments=segments)
        reply: pb.SegmentRanges = await self._connection.native("SegmentRanges", request)
        return {item.segment: item.keys for item in mapping.ranges_of(reply.segmentRanges)}

    async def is_active(self, stream: StreamName, segment: SegmentId) -> bool:
        reply: pb.SegmentValidityResponse = await self._connection.controller(
            "isSegmentValid", mapping.segment_message(stream, segment)
        )
        return reply.response

    async def scale(
        self, stream: StreamName, *, sealed: Sequence[SegmentId], new_ranges: Sequence[KeyRange]
    ) -> ScaleResult:
        request = make(
            pb.ScaleRequest,
            streamInfo=mapping.stream_message(stream),
            sealedSegments=sealed,
            newKeyRanges=[pb.ScaleRequest.KeyRangeEntry(start=item.low, end=item.high) for item in new_ranges],
        )
        reply: pb.ScaleResponse = await self._connection.controller("scale", request)
        return ScaleResult(segments=mapping.ranges_of(reply.segments), epoch_before=reply.epoch)

    async def scale_status(self, stream: StreamName, epoch: int) -> ScaleStatus:
        request = make(pb.ScaleStatusRequest, streamInfo=mapping.stream_message(stream), epoch=epoch)
        known = mapping.SCALE_STATUSES_BACK
        reply: pb.ScaleStatusResponse = await self._connection.controller("checkScale", request, accept=known)
        return known[reply.status]

    async def endpoint(self, segment: str) -> Endpoint:
        reply: pb.NodeUri = await self._connection.native("Endpoint", make(native.EndpointRequest, segment=segment))
        return Endpoint(host=reply.endpoint, port=reply.port)

    async def epochs(self, stream: StreamName) -> Sequence[EpochInfo]:
        raise UnsupportedError("epochs are listed over HTTP", stream=str(stream))


class _Cuts(_Remote):
    async def head(self, stream: StreamName) -> StreamCut:
        # Pravega's getSegments does not tell a segment that must wait for an older one from one that begins at 0.
        return mapping.cut_of(await self._connection.native("Head", stream_request(stream)))

    async def tail(self, stream: StreamName) -> StreamCut:
        return mapping.cut_of(await self._connection.native("Tail", stream_request(stream)))

    async def segments_between(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentId]:
        first, last = (mapping.cut_message(_cut_of(stream, cut)).cut for cut in (start, end))
        request = pb.StreamCutRange(streamInfo=mapping.stream_message(stream), to=last)
        getattr(request, "from").update(first)  # a keyword
        reply: pb.StreamCutRangeResponse = await self._connection.controller("getSegmentsBetween", request)
        return tuple(mapping.segment_of(item.segmentId) for item in reply.segments)

    async def measure(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentSpan]:
        request = native.MeasureRequest(
            stream=stream_request(stream).stream,
            start=mapping.cut_message(_cut_of(stream, start)),
            end=mapping.cut_message(_cut_of(stream, end)),
        )
        reply: native.MeasureResponse = await self._connection.native("Measure", request)
        return tuple(own.span_of(item) for item in reply.spans)

    async def is_valid(self, stream: StreamName, cut: StreamCut) -> bool:
        request = pb.StreamCut(streamInfo=mapping.stream_message(stream), cut=mapping.cut_message(cut).cut)
        reply: pb.StreamCutValidityResponse = await self._connection.controller("isStreamCutValid", request)
        return reply.response and cut.stream == stream


class _Batches(_Remote):
    async def commit(
        self,
        stream: StreamName,
        *,
        writer: str,
        batch: int,
        transactions: Sequence[UUID],
        source: QuerySource | None = None,
        one_job: bool = False,
    ) -> bool:
        request = make(
            native.CommitBatchRequest,
            stream=mapping.stream_message(stream),
            writer=writer,
            batch=batch,
            transactions=[mapping.transaction_message(txn) for txn in transactions],
            source=None if source is None else own.query_source_message(source),
            one_job=one_job,
        )
        reply: native.CommitBatchResponse = await self._connection.native("CommitBatch", request)
        return reply.committed

    async def last(self, stream: StreamName, *, writer: str, source: QuerySource | None = None) -> int | None:
        request = make(
            native.LastBatchRequest,
            stream=mapping.stream_message(stream),
            writer=writer,
            source=None if source is None else own.query_source_message(source),
        )
        reply: native.LastBatchResponse = await self._connection.native("LastBatch", request)
        return reply.batch if reply.HasField("batch") else None


class _ReaderGroups(_Remote):
    async def create(self, config: ReaderGroupConfig) -> ReaderGroupConfig:
        reply: pb.CreateReaderGroupResponse = await self._connection.controller(
            "createReaderGroup", mapping.group_message(config)
        )
        return mapping.group_of(reply.config)

    async def update(self, config: ReaderGroupConfig) -> int:
        reply: pb.UpdateReaderGroupResponse = await self._connection.controller(
            "updateReaderGroup", mapping.group_message(config)
        )
        return reply.generation

    async def get(self, scope: str, name: str) -> ReaderGroupConfig:
        request = make(pb.ReaderGroupInfo, scope=scope, readerGroup=name)
        reply: pb.ReaderGroupConfigResponse = await self._connection.controller("getReaderGroupConfig", request)
        return mapping.group_of(reply.config)

    async def delete(self, scope: str, name: str, *, group_id: UUID | None = None) -> None:
        request = make(
            native.DeleteReaderGroupRequest,
            scope=scope,
            group=name,
            group_id=None if group_id is None else str(group_id),
        )
        await self._connection.native("DeleteReaderGroup", request)

    async def list(self, scope: str) -> Sequence[str]:
        request = make(native.ListReaderGroupsRequest, scope=scope)
        reply: native.ListReaderGroupsResponse = await self._connection.native("ListReaderGroups", request)
        return tuple(reply.groups)


class _Subscribers(_Remote):
    async def list(self, stream: StreamName) -> Sequence[str]:
        reply: pb.SubscribersResponse = await self._connection.controller(
            "listSubscribers", mapping.stream_message(stream)
        )
        return tuple(reply.subscribers)

    async def publish(
        self,
        subscriber: str,
        *,
        group_id: UUID | None,
        generation: int | None,
        cut: StreamCut,
        source: QuerySource | None = None,
    ) -> None:
        request = make(
            native.UpdateSubscriberCutRequest,
            subscriber=subscriber,
            group_id=None if group_id is None else str(group_id),
            generation=generation,
            cut=mapping.cut_message(cut),
            source=None if source is None else own.query_source_message(source),
        )
        await self._connection.native("UpdateSubscriberCut", request)

    async def describe(self, stream: StreamName) -> Sequence[SubscriberInfo]:
        reply: native.Subscribers = await self._connection.native("DescribeSubscribers", stream_request(stream))
        return tuple(own.subscriber_of(item) for item in reply.subscribers)

    async def move(
        self, stream: StreamName, subscriber: str, cut: StreamCut, *, dry_run: bool = False
    ) -> SubscriberMove:
        request = make(
            native.MoveSubscriberRequest,
            stream=mapping.stream_message(stream),
            subscriber=subscriber,
            cut=mapping.cut_message(cut),
            dry_run=dry_run,
        )
        return own.answer_of(SubscriberMove, await self._connection.native("MoveSubscriber", request))

    async def remove(self, stream: StreamName, subscriber: str) -> None:
        request = make(native.SubscriberRequest, stream=mapping.stream_message(stream), subscriber=subscriber)
        await self._connection.native("RemoveSubscriber", request)


class _Policies(_Remote):
    async def get(self, target: PolicyTarget) -> PolicyDocument:
        reply: native.JsonAnswer = await self._connection.native("GetPolicy", own.target_message(target))
        return own.document_of(reply.json)

    async def set(self, target: PolicyTarget, document: PolicyDocument) -> None:
        request = native.SetPolicyRequest(target=own.target_message(target), json=json.dumps(encode_document(document)))
        await self._connection.native("SetPolicy", request)

    async def effective(self, stream: StreamName) -> EffectivePolicy:
        reply: native.JsonAnswer = await self._connection.native("EffectivePolicy", stream_request(stream))
        return decode_effective(own.json_of(reply.json))


class _Retention(_Remote):
    async def run(self, stream: StreamName) -> RetentionRun:
        return own.answer_of(RetentionRun, await self._connection.native("RunRetention", stream_request(stream)))

    async def plan(
        self, stream: StreamName, *, change: PolicyDocument | None = None, at_ms: int | None = None
    ) -> RetentionPlan:
        request = make(
            native.PlanRequest,
            stream=mapping.stream_message(stream),
            change=None if change is None else json.dumps(encode_document(change)),
            at_ms=at_ms,
        )
        return own.answer_of(RetentionPlan, await self._connection.native("PlanRetention", request))

    async def explain(self, stream: StreamName, *, position: StreamCut | None = None) -> Explanation:
        request = native.ExplainRequest(
            stream=mapping.stream_message(stream),
            position=None if position is None else mapping.cut_message(position),
        )
        return own.answer_of(Explanation, await self._connection.native("ExplainRetention", request))

    async def facts(self, stream: StreamName, *, change: PolicyDocument | None = None) -> StreamFacts:
        request = make(
            native.PlanRequest,
            stream=mapping.stream_message(stream),
            change=None if change is None else json.dumps(encode_document(change)),
        )
        return own.answer_of(StreamFacts, await self._connection.native("RetentionFacts", request))

    async def reclaim(self, stream: StreamName) -> ReclaimReport:
        return own.answer_of(ReclaimReport, await self._connection.native("ReclaimReport", stream_request(stream)))

    async def forecast(self, stream: StreamName) -> Forecast:
        return own.answer_of(Forecast, await self._connection.native("ForecastRetention", stream_request(stream)))

    async def undo_last(self, stream: StreamName) -> StreamCut:
        reply: pb.StreamCut = await self._connection.native("UndoTruncation", stream_request(stream))
        return mapping.cut_of(reply)

    async def undo(self, stream: StreamName, *, since_ms: int | None = None) -> UndoneTruncations:
        request = make(native.UndoRequest, stream=mapping.stream_message(stream), since_ms=since_ms)
        return own.answer_of(UndoneTruncations, await self._connection.native("UndoTruncations", request))

    async def list_evictions(self, stream: StreamName) -> Sequence[Eviction]:
        reply: native.JsonAnswer = await self._connection.native("ListEvictions", stream_request(stream))
        return [from_json(Eviction, item) for item in own.json_of(reply.json)["evictions"]]


class _Holds(_Remote):
    async def add(
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

    async def list(self, target: PolicyTarget = None) -> Sequence[HoldInfo]:
        reply: native.Holds = await self._connection.native("ListHolds", own.target_message(target))
        return tuple(own.hold_of(item) for item in reply.holds)

    async def release(self, hold_id: str, *, owner: str) -> HoldInfo:
        request = make(native.ReleaseHoldRequest, id=hold_id, owner=owner)
        return own.hold_of(await self._connection.native("ReleaseHold", request))


class _Erasures(_Remote):
    async def erase(
        self,
        stream: StreamName,
        asked: Mapping[str, Any],
        positions: Mapping[SegmentId, Sequence[int]],
        *,
        page: int | None = None,
        last: bool = True,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        request = make(
            native.EraseRequest,
            stream=mapping.stream_message(stream),
            json=json.dumps(dict(asked)),
            positions=[
                make(native.SegmentOffsets, segment=segment, offsets=list(offsets))
                for segment, offsets in positions.items()
            ],
            page=page,
            last=last,
            dry_run=dry_run,
        )
        return own.json_of((await self._connection.native("Erase", request)).json)

    async def get(self, erasure: str) -> Mapping[str, Any]:
        return own.json_of((await self._connection.native("GetErasure", make(native.ErasureRequest, id=erasure))).json)

    async def part(self, erasure: str, part: int) -> Mapping[str, Any]:
        request = make(native.ErasureRequest, id=erasure, part=part)
        return own.json_of((await self._connection.native("GetErasure", request)).json)

    async def list(self, stream: StreamName | None = None) -> Sequence[Mapping[str, Any]]:
        message = None if stream is None else mapping.stream_message(stream)
        reply = await self._connection.native("ListErasures", make(native.ErasuresRequest, stream=message))
        found: list[Mapping[str, Any]] = own.json_of(reply.json)["erasures"]
        return found

    async def withdraw(self, erasure: str, *, who: str, why: str) -> Mapping[str, Any]:
        request = make(native.WithdrawErasureRequest, id=erasure, who=who, why=why)
        return own.json_of((await self._connection.native("WithdrawErasure", request)).json)


class RemoteTransactions:
    """Transactions of the remote controller, alone and in batches. What every small transaction needs goes over a connection
    to the store where one is known that takes it, else over gRPC."""

    _line: LineCalls | None = None
    _line_taken: bool | None = None
    """Whether the server takes calls there; None: it has to be asked."""
    _takes_events = True
    """Whether it is worth asking the server to take events with a commit."""

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection

    def use_line(self, calls: LineCalls) -> None:
        """Make calls over connections to the store, where the server takes them. Borrowed."""
        self._line = calls

    def learn(self, info: StoreInfo) -> None:
        """What the server says of itself."""
        self._line_taken = CALLS_CAPABILITY in info.capabilities

    async def _transact(
        self, rpc: str, stream: StreamName, request: Any, kind: type[Any], accept: Iterable[int] = ()
    ) -> tuple[Any, bool]:
        """The reply, and whether the server noted that a commit is readable."""
        if (answer := await self._over_line(rpc, stream, request)) is not None:
            message, note = answer
            return kind.FromString(message), note == mapping.COMMITTED_METADATA[1]
        reply, metadata = await self._connection.annotated(rpc, request, accept=accept)
        return reply, mapping.COMMITTED_METADATA in metadata

    async def _over_line(self, rpc: str, stream: StreamName, request: Any) -> tuple[bytes, bytes] | None:
        """The response message and what is noted beside it; None: the call is to be made over gRPC."""
        if self._line is None:
            return None
        if self._line_taken is None:
            self._line_taken = await self._offers_line()
        if not self._line_taken:
            return None
        try:
            return await self._line.call(rpc, stream, request.SerializeToString())
        except (NotConnectedError, UnsupportedError):
            # Over gRPC it is repeated until the server is there again, or says what is wrong.
            self._line_taken = None
            return None

    async def _offers_line(self) -> bool:
        try:
            reply: native.InfoResponse = await self._connection.native("Info", native.InfoRequest())
        except UnsupportedError:
            return False
        return CALLS_CAPABILITY in reply.capabilities

    async def create(self, stream: StreamName, *, lease_ms: int) -> Transaction:
        request = make(pb.CreateTxnRequest, streamInfo=mapping.stream_message(stream), lease=lease_ms)
        reply: pb.CreateTxnResponse
        reply, _ = await self._transact("createTransaction", stream, request, pb.CreateTxnResponse)
        return Transaction(id=mapping.transaction_of(reply.txnId), segments=mapping.ranges_of(reply.activeSegments))

    async def join(self, stream: StreamName, key: UUID, *, lease_ms: int) -> Transaction:
        request = make(
            native.JoinTransactionRequest, stream=mapping.stream_message(stream), key=str(key), lease_ms=lease_ms
        )
        reply: native.JoinTransactionResponse = await self._connection.native("JoinTransaction", request)
        return Transaction(id=mapping.transaction_of(reply.transaction), segments=mapping.ranges_of(reply.segments))

    async def ping(self, stream: StreamName, txn: UUID, *, lease_ms: int) -> PingStatus:
        request = make(
            pb.PingTxnRequest,
            streamInfo=mapping.stream_message(stream),
            txnId=mapping.transaction_message(txn),
            lease=lease_ms,
        )
        reply: pb.PingTxnStatus
        reply, _ = await self._transact("pingTransaction", stream, request, pb.PingTxnStatus, _ANY_STATUS)
        return mapping.PING_STATUSES_BACK.get(reply.status, PingStatus.UNKNOWN)

    async def commit(self, stream: StreamName, txn: UUID, *, blocks: Sequence[EventBlock] = ()) -> TransactionStatus:
        if blocks:
            return await self._commit_events(stream, txn, blocks)
        request = _transaction_request(stream, txn)
        _, known = await self._transact("commitTransaction", stream, request, pb.TxnStatus)
        return TransactionStatus.COMMITTED if known else TransactionStatus.COMMITTING

    async def _commit_events(self, stream: StreamName, txn: UUID, blocks: Sequence[EventBlock]) -> TransactionStatus:
        if not self._takes_events:
            raise UnsupportedError("the server takes no events with a commit", stream=str(stream))
        request = make(
            native.CommitEventsRequest,
            stream=mapping.stream_message(stream),
            transaction=mapping.transaction_message(txn),
            blocks=[own.block_message(block) for block in blocks],
        )
        reply: native.CommitEventsResponse
        if (message := await self._over_line("CommitEvents", stream, request)) is not None:
            reply = native.CommitEventsResponse.FromString(message[0])
        else:
            try:
                reply = await self._connection.native("CommitEvents", request)
            except UnsupportedError:
                self._takes_events = False
                raise
        return TransactionStatus.COMMITTED if reply.committed else TransactionStatus.COMMITTING

    async def abort(self, stream: StreamName, txn: UUID) -> None:
        await self._transact("abortTransaction", stream, _transaction_request(stream, txn), pb.TxnStatus)

    async def status(self, stream: StreamName, txn: UUID) -> TransactionStatus:
        request = _transaction_request(stream, txn)
        reply: pb.TxnState
        reply, _ = await self._transact("checkTransactionState", stream, request, pb.TxnState, _ANY_STATUS)
        return mapping.TRANSACTION_STATES_BACK.get(reply.state, TransactionStatus.UNKNOWN)

    async def list_completed(self, stream: StreamName) -> Sequence[tuple[UUID, TransactionStatus]]:
        request = pb.ListCompletedTxnRequest(streamInfo=mapping.stream_message(stream))
        reply: pb.ListCompletedTxnResponse = await self._connection.controller("listCompletedTransactions", request)
        return tuple((mapping.transaction_of(item.txnId), _COMPLETED[item.status]) for item in reply.response)


class RemoteController:
    """A ``ControlPlane`` in another process. Every call raises what the remote one raised, NotConnectedError where
    nothing answers for the patience of the connection, and DeadlineExceededError where an answer does not come."""

    def __init__(self, connection: GrpcConnection) -> None:
        """The connection is borrowed."""
        self.scopes = _Scopes(connection)
        self.streams = _Streams(connection)
        self.layout = _Layout(connection)
        self.cuts = _Cuts(connection)
        self.transactions = RemoteTransactions(connection)
        self.batches = _Batches(connection)
        self.groups = _ReaderGroups(connection)
        self.subscribers = _Subscribers(connection)
        self.policies = _Policies(connection)
        self.retention = _Retention(connection)
        self.holds = _Holds(connection)
        self.erasures = _Erasures(connection)
        self.native = NativeSegments(connection)
        """The native calls on segments, over the same connection."""


@asynccontextmanager
async def dial_controller(
    address: str, *, patience_s: float = PATIENCE_S, dial_s: float | None = None, call_s: float = CALL_S
) -> AsyncIterator[RemoteController]:
    """Use the controller at ``host:port`` (also behind ``tcp://``; the port may be left out for 9090).

    Args:
        patience_s: How long a call goes on while no server answers. A restart within it is not noticed, and a server that
            starts a little later is waited for.
        dial_s: The same for the very first call; default ``patience_s``. If it is given and the first connection is
        refused, the error comes after at most ``REFUSED_S``, because people prefer to know at once. call_s: How long a
        server may take over one call.
    Raises:
        InvalidArgumentError, UnsupportedError: The address is none, or asks for encryption.
        NotConnectedError: Nothing answers there.
    """
    first_s = patience_s if dial_s is None else dial_s
    if dial_s is not None:
        await check_listens(address, wait_s=min(dial_s, REFUSED_S))
    async with GrpcConnection(address, patience_s=first_s, call_s=call_s) as connection:
        controller = RemoteController(connection)
        # A server that is not ours answers too, if only that it does not know the question.
        with suppress(UnsupportedError):
            controller.transactions.learn(await controller.native.info())
        connection.patience_s = patience_s
        yield controller


def stream_request(stream: StreamName) -> native.StreamRequest:
    return native.StreamRequest(stream=mapping.stream_message(stream))


def _cut_of(stream: StreamName, cut: StreamCut) -> StreamCut:
    """The cut as one of the stream: the requests name a stream once, and would lose that they differ."""
    if cut.stream != stream and not cut.is_unbounded:
        raise InvalidCutError("cut belongs to another stream", stream=str(stream), cut_of=str(cut.stream))
    return StreamCut(stream, cut.positions)


def _transaction_request(stream: StreamName, txn: UUID) -> pb.TxnRequest:
    return pb.TxnRequest(streamInfo=mapping.stream_message(stream), txnId=mapping.transaction_message(txn))
