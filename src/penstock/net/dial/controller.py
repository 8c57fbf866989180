"""A remote control plane that is used like one in process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID

from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError, NotConnectedError, UnsupportedError
from penstock.model.names import StreamName
from penstock.model.policies import StreamConfig
from penstock.model.queries import QuerySource
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.net.dial.addresses import REFUSED_S, check_listens
from penstock.net.dial.erasure import RemoteErasures
from penstock.net.dial.grpc_connection import CALL_S, PATIENCE_S, GrpcConnection
from penstock.net.dial.line_calls import LineCalls
from penstock.net.dial.native import NativeSegments, StoreInfo
from penstock.net.dial.retention import RemoteRetention, stream_request
from penstock.net.grpc import mapping
from penstock.net.grpc import native_mapping as own
from penstock.net.grpc.mapping import make
from penstock.net.proto import Controller_pb2 as pb
from penstock.net.proto import native_pb2 as native
from penstock.net.wire.requests import CALLS_CAPABILITY
from penstock.ports.controller_service import (
    PAGE_MAX,
    ControllerService,
    Endpoint,
    EventBlock,
    PingStatus,
    ReaderGroupConfig,
    ScaleResult,
    ScaleStatus,
    SegmentSpan,
    StreamDescription,
    Successor,
    Transaction,
    TransactionStatus,
)

_COMPLETED = {
    pb.ListCompletedTxnResponse.TxnResponse.COMMITTED: TransactionStatus.COMMITTED,
    pb.ListCompletedTxnResponse.TxnResponse.ABORTED: TransactionStatus.ABORTED,
}
_ANY_STATUS = range(8)


class _Scopes:
    """Scopes and streams of the remote controller."""

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection

    async def create_scope(self, scope: str) -> None:
        await self._connection.controller("createScope", make(pb.ScopeInfo, scope=scope))

    async def delete_scope(self, scope: str) -> None:
        await self._connection.controller("deleteScope", make(pb.ScopeInfo, scope=scope))

    async def scope_exists(self, scope: str) -> bool:
        reply: pb.ExistsResponse = await self._connection.controller(
            "checkScopeExists", make(pb.ScopeInfo, scope=scope)
        )
        return reply.exists

    async def list_scopes(self, *, after: str = "", limit: int = PAGE_MAX) -> Sequence[str]:
        request = pb.ScopesRequest(continuationToken=make(pb.ContinuationToken, token=after))
        reply: pb.ScopesResponse = await self._connection.controller("listScopes", request)
        return tuple(reply.scopes[:limit])

    async def create_stream(self, stream: StreamName, config: StreamConfig) -> None:
        await self._connection.controller("createStream", mapping.config_message(stream, config))

    async def update_stream(self, stream: StreamName, config: StreamConfig) -> None:
        await self._connection.controller("updateStream", mapping.config_message(stream, config))

    async def stream_exists(self, stream: StreamName) -> bool:
        reply: pb.ExistsResponse = await self._connection.controller(
            "checkStreamExists", mapping.stream_message(stream)
        )
        return reply.exists

    async def get_config(self, stream: StreamName) -> StreamConfig:
        return mapping.config_of(
            await self._connection.controller("getStreamConfiguration", mapping.stream_message(stream))
        )

    async def list_streams(
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

    async def seal_stream(self, stream: StreamName) -> None:
        await self._connection.controller("sealStream", mapping.stream_message(stream))

    async def delete_stream(self, stream: StreamName, *, seal: bool = False) -> None:
        if seal:
            # Pravega's call only deletes sealed streams. Sealing first would leave the stream sealed if a hold refuses.
            request = make(native.DeleteStreamRequest, stream=mapping.stream_message(stream), seal=True)
            await self._connection.native("DeleteStream", request)
        else:
            await self._connection.controller("deleteStream", mapping.stream_message(stream))

    async def truncate_stream(self, stream: StreamName, cut: StreamCut) -> None:
        await self._connection.controller("truncateStream", mapping.cut_message(_cut_of(stream, cut)))

    async def describe_stream(self, stream: StreamName) -> StreamDescription:
        return own.description_of(await self._connection.native("DescribeStream", stream_request(stream)))


class _Segments:
    """Segments of streams of the remote controller."""

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection

    async def current_segments(self, stream: StreamName) -> Sequence[SegmentRange]:
        reply: pb.SegmentRanges = await self._connection.controller(
            "getCurrentSegments", mapping.stream_message(stream)
        )
        return mapping.ranges_of(reply.segmentRanges)

    async def epoch_segments(self, stream: StreamName, epoch: int) -> Sequence[SegmentRange]:
        request = make(pb.GetEpochSegmentsRequest, streamInfo=mapping.stream_message(stream), epoch=epoch)
        reply: pb.SegmentRanges = await self._connection.controller("getEpochSegments", request)
        return mapping.ranges_of(reply.segmentRanges)

    async def head(self, stream: StreamName) -> StreamCut:
        # Pravega's getSegments does not tell a segment that must wait for an older one from one that begins at 0.
        return mapping.cut_of(await self._connection.native("Head", stream_request(stream)))

    async def tail(self, stream: StreamName) -> StreamCut:
        return mapping.cut_of(await self._connection.native("Tail", stream_request(stream)))

    async def successors(self, stream: StreamName, segment: SegmentId) -> Sequence[Successor]:
        reply: pb.SuccessorResponse = await self._connection.controller(
            "getSegmentsImmediatelyFollowing", mapping.segment_message(stream, segment)
        )
        return tuple(mapping.successor_of(item) for item in reply.segments)

    async def measure(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentSpan]:
        request = native.MeasureRequest(
            stream=stream_request(stream).stream,
            start=mapping.cut_message(_cut_of(stream, start)),
            end=mapping.cut_message(_cut_of(stream, end)),
        )
        reply: native.MeasureResponse = await self._connection.native("Measure", request)
        return tuple(own.span_of(item) for item in reply.spans)

    async def segments_between(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentId]:
        first, last = (mapping.cut_message(_cut_of(stream, cut)).cut for cut in (start, end))
        request = pb.StreamCutRange(streamInfo=mapping.stream_message(stream), to=last)
        getattr(request, "from").update(first)  # a keyword
        reply: pb.StreamCutRangeResponse = await self._connection.controller("getSegmentsBetween", request)
        return tuple(mapping.segment_of(item.segmentId) for item in reply.segments)

    async def segment_ranges(self, stream: StreamName, segments: Sequence[SegmentId]) -> Mapping[SegmentId, KeyRange]:
        request = make(native.SegmentRangesRequest, stream=mapping.stream_message(stream), segments=segments)
        reply: pb.SegmentRanges = await self._connection.native("SegmentRanges", request)
        return {item.segment: item.keys for item in mapping.ranges_of(reply.segmentRanges)}

    async def is_segment_active(self, stream: StreamName, segment: SegmentId) -> bool:
        reply: pb.SegmentValidityResponse = await self._connection.controller(
            "isSegmentValid", mapping.segment_message(stream, segment)
        )
        return reply.response

    async def is_cut_valid(self, stream: StreamName, cut: StreamCut) -> bool:
        request = pb.StreamCut(streamInfo=mapping.stream_message(stream), cut=mapping.cut_message(cut).cut)
        reply: pb.StreamCutValidityResponse = await self._connection.controller("isStreamCutValid", request)
        return reply.response and cut.stream == stream

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


class _Transactions:
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

    async def create_transaction(self, stream: StreamName, *, lease_ms: int) -> Transaction:
        request = make(pb.CreateTxnRequest, streamInfo=mapping.stream_message(stream), lease=lease_ms)
        reply: pb.CreateTxnResponse
        reply, _ = await self._transact("createTransaction", stream, request, pb.CreateTxnResponse)
        return Transaction(id=mapping.transaction_of(reply.txnId), segments=mapping.ranges_of(reply.activeSegments))

    async def join_transaction(self, stream: StreamName, key: UUID, *, lease_ms: int) -> Transaction:
        request = make(
            native.JoinTransactionRequest, stream=mapping.stream_message(stream), key=str(key), lease_ms=lease_ms
        )
        reply: native.JoinTransactionResponse = await self._connection.native("JoinTransaction", request)
        return Transaction(id=mapping.transaction_of(reply.transaction), segments=mapping.ranges_of(reply.segments))

    async def ping_transaction(self, stream: StreamName, txn: UUID, *, lease_ms: int) -> PingStatus:
        request = make(
            pb.PingTxnRequest,
            streamInfo=mapping.stream_message(stream),
            txnId=mapping.transaction_message(txn),
            lease=lease_ms,
        )
        reply: pb.PingTxnStatus
        reply, _ = await self._transact("pingTransaction", stream, request, pb.PingTxnStatus, _ANY_STATUS)
        return mapping.PING_STATUSES_BACK.get(reply.status, PingStatus.UNKNOWN)

    async def commit_transaction(
        self, stream: StreamName, txn: UUID, *, blocks: Sequence[EventBlock] = ()
    ) -> TransactionStatus:
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

    async def abort_transaction(self, stream: StreamName, txn: UUID) -> None:
        await self._transact("abortTransaction", stream, _transaction_request(stream, txn), pb.TxnStatus)

    async def transaction_status(self, stream: StreamName, txn: UUID) -> TransactionStatus:
        request = _transaction_request(stream, txn)
        reply: pb.TxnState
        reply, _ = await self._transact("checkTransactionState", stream, request, pb.TxnState, _ANY_STATUS)
        return mapping.TRANSACTION_STATES_BACK.get(reply.state, TransactionStatus.UNKNOWN)

    async def list_completed_transactions(self, stream: StreamName) -> Sequence[tuple[UUID, TransactionStatus]]:
        request = pb.ListCompletedTxnRequest(streamInfo=mapping.stream_message(stream))
        reply: pb.ListCompletedTxnResponse = await self._connection.controller("listCompletedTransactions", request)
        return tuple((mapping.transaction_of(item.txnId), _COMPLETED[item.status]) for item in reply.response)

    async def commit_batch(
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

    async def last_batch(self, stream: StreamName, *, writer: str, source: QuerySource | None = None) -> int | None:
        request = make(
            native.LastBatchRequest,
            stream=mapping.stream_message(stream),
            writer=writer,
            source=None if source is None else own.query_source_message(source),
        )
        reply: native.LastBatchResponse = await self._connection.native("LastBatch", request)
        return reply.batch if reply.HasField("batch") else None


class _ReaderGroups:
    """Reader groups and subscribers of the remote controller."""

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection

    async def create_reader_group(self, config: ReaderGroupConfig) -> ReaderGroupConfig:
        reply: pb.CreateReaderGroupResponse = await self._connection.controller(
            "createReaderGroup", mapping.group_message(config)
        )
        return mapping.group_of(reply.config)

    async def update_reader_group(self, config: ReaderGroupConfig) -> int:
        reply: pb.UpdateReaderGroupResponse = await self._connection.controller(
            "updateReaderGroup", mapping.group_message(config)
        )
        return reply.generation

    async def get_reader_group(self, scope: str, name: str) -> ReaderGroupConfig:
        request = make(pb.ReaderGroupInfo, scope=scope, readerGroup=name)
        reply: pb.ReaderGroupConfigResponse = await self._connection.controller("getReaderGroupConfig", request)
        return mapping.group_of(reply.config)

    async def delete_reader_group(self, scope: str, name: str, *, group_id: UUID | None = None) -> None:
        request = make(
            native.DeleteReaderGroupRequest,
            scope=scope,
            group=name,
            group_id=None if group_id is None else str(group_id),
        )
        await self._connection.native("DeleteReaderGroup", request)

    async def list_reader_groups(self, scope: str) -> Sequence[str]:
        request = make(native.ListReaderGroupsRequest, scope=scope)
        reply: native.ListReaderGroupsResponse = await self._connection.native("ListReaderGroups", request)
        return tuple(reply.groups)

    async def list_subscribers(self, stream: StreamName) -> Sequence[str]:
        reply: pb.SubscribersResponse = await self._connection.controller(
            "listSubscribers", mapping.stream_message(stream)
        )
        return tuple(reply.subscribers)

    async def update_subscriber_cut(
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


class RemoteController(
    _Scopes, _Segments, _Transactions, _ReaderGroups, RemoteRetention, RemoteErasures, ControllerService
):
    """A ``ControllerService`` in another process. Every call raises what the remote one raised, NotConnectedError where
    nothing answers for the patience of the connection, and DeadlineExceededError where an answer does not come."""

    @property
    def native(self) -> NativeSegments:
        """The native calls on segments, over the same connection."""
        return NativeSegments(self._connection)


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
            controller.learn(await controller.native.info())
        connection.patience_s = patience_s
        yield controller


def _cut_of(stream: StreamName, cut: StreamCut) -> StreamCut:
    """The cut as one of the stream: the requests name a stream once, and would lose that they differ."""
    if cut.stream != stream and not cut.is_unbounded:
        raise InvalidCutError("cut belongs to another stream", stream=str(stream), cut_of=str(cut.stream))
    return StreamCut(stream, cut.positions)


def _transaction_request(stream: StreamName, txn: UUID) -> pb.TxnRequest:
    return pb.TxnRequest(streamInfo=mapping.stream_message(stream), txnId=mapping.transaction_message(txn))
