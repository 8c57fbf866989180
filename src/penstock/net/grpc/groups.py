"""Pravega's calls on transactions, writers' time and reader groups, answered by a ``ControlPlane``."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.net.access.doors import TokenDesk
from penstock.net.grpc import mapping
from penstock.net.grpc.dispatch import Handler
from penstock.net.proto import Controller_pb2 as pb
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.transactions import WRITER_NAME_MAX, NotedTime, TransactionStatus

_COMPLETED = {
    TransactionStatus.COMMITTED: pb.ListCompletedTxnResponse.TxnResponse.COMMITTED,
    TransactionStatus.ABORTED: pb.ListCompletedTxnResponse.TxnResponse.ABORTED,
}


class TransactionCalls:
    """Transactions, and the times that writers report."""

    def __init__(self, controller: ControlPlane, tokens: TokenDesk) -> None:
        self._controller = controller
        self._tokens = tokens

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "createTransaction": self.create,
            "commitTransaction": self.commit,
            "abortTransaction": self.abort,
            "pingTransaction": self.ping,
            "checkTransactionState": self.state,
            "listCompletedTransactions": self.completed,
            "noteTimestampFromWriter": self.note_time,
            "removeWriter": self.remove_writer,
        }

    async def create(self, request: pb.CreateTxnRequest) -> pb.CreateTxnResponse:
        stream = mapping.stream_of(request.streamInfo)
        txn = await self._controller.transactions.create(stream, lease_ms=request.lease)
        return pb.CreateTxnResponse(
            txnId=mapping.transaction_message(txn.id),
            activeSegments=[mapping.range_message(stream, item) for item in txn.segments],
            delegationToken=self._tokens.token_or_none(stream),
        )

    async def commit(self, request: pb.TxnRequest) -> pb.TxnStatus:
        stream = mapping.stream_of(request.streamInfo)
        # Clients that note no time send none, or the smallest of all. A time that cannot be noted must not refuse a commit.
        noted = None
        if request.timestamp > 0 and 0 < len(request.writerId) <= WRITER_NAME_MAX:
            noted = NotedTime(writer=request.writerId, time_ms=request.timestamp)
        await self._controller.transactions.commit(stream, mapping.transaction_of(request.txnId), noted=noted)
        return pb.TxnStatus()

    async def abort(self, request: pb.TxnRequest) -> pb.TxnStatus:
        stream = mapping.stream_of(request.streamInfo)
        await self._controller.transactions.abort(stream, mapping.transaction_of(request.txnId))
        return pb.TxnStatus()

    async def ping(self, request: pb.PingTxnRequest) -> pb.PingTxnStatus:
        stream, txn = mapping.stream_of(request.streamInfo), mapping.transaction_of(request.txnId)
        status = await self._controller.transactions.ping(stream, txn, lease_ms=request.lease)
        return pb.PingTxnStatus(status=mapping.PING_STATUSES[status])

    async def state(self, request: pb.TxnRequest) -> pb.TxnState:
        stream = mapping.stream_of(request.streamInfo)
        status = await self._controller.transactions.status(stream, mapping.transaction_of(request.txnId))
        return pb.TxnState(state=mapping.TRANSACTION_STATES[status])

    async def completed(self, request: pb.ListCompletedTxnRequest) -> pb.ListCompletedTxnResponse:
        items = await self._controller.transactions.list_completed(mapping.stream_of(request.streamInfo))
        reply = pb.ListCompletedTxnResponse()
        for txn, status in items:
            if status in _COMPLETED:
                reply.response.add(txnId=mapping.transaction_message(txn), status=_COMPLETED[status])
        return reply

    async def note_time(self, request: pb.TimestampFromWriter) -> pb.TimestampResponse:
        position = mapping.cut_of(request.position)
        await self._controller.cuts.note_time(position.stream, request.writer, request.timestamp, position=position)
        return pb.TimestampResponse()

    async def remove_writer(self, request: pb.RemoveWriterRequest) -> pb.RemoveWriterResponse:
        await self._controller.cuts.remove_writer(mapping.stream_of(request.stream), request.writer)
        return pb.RemoveWriterResponse()


class ReaderGroupCalls:
    """Reader groups, and what subscribed groups have consumed."""

    def __init__(self, controller: ControlPlane) -> None:
        self._controller = controller

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "createReaderGroup": self.create,
            "updateReaderGroup": self.update,
            "getReaderGroupConfig": self.configuration,
            "deleteReaderGroup": self.delete,
            "listSubscribers": self.subscribers,
            "updateSubscriberStreamCut": self.update_cut,
        }

    async def create(self, request: pb.ReaderGroupConfiguration) -> pb.CreateReaderGroupResponse:
        stored = await self._controller.groups.create(mapping.group_of(request))
        return pb.CreateReaderGroupResponse(config=mapping.group_message(stored))

    async def update(self, request: pb.ReaderGroupConfiguration) -> pb.UpdateReaderGroupResponse:
        generation = await self._controller.groups.update(mapping.group_of(request))
        return pb.UpdateReaderGroupResponse(generation=generation)

    async def configuration(self, request: pb.ReaderGroupInfo) -> pb.ReaderGroupConfigResponse:
        stored = await self._controller.groups.get(mapping.scope_of(request.scope), request.readerGroup)
        return pb.ReaderGroupConfigResponse(config=mapping.group_message(stored))

    async def delete(self, request: pb.ReaderGroupInfo) -> pb.DeleteReaderGroupStatus:
        group_id = mapping.uuid_of(request.readerGroupId, field="readerGroupId")
        await self._controller.groups.delete(mapping.scope_of(request.scope), request.readerGroup, group_id=group_id)
        return pb.DeleteReaderGroupStatus()

    async def subscribers(self, request: pb.StreamInfo) -> pb.SubscribersResponse:
        names = await self._controller.subscribers.list(mapping.stream_of(request))
        return pb.SubscribersResponse(subscribers=names)

    async def update_cut(self, request: pb.SubscriberStreamCut) -> pb.UpdateSubscriberStatus:
        await self._controller.subscribers.publish(
            request.subscriber,
            group_id=mapping.uuid_of(request.readerGroupId, field="readerGroupId"),
            generation=request.generation,
            cut=mapping.cut_of(request.streamCut),
        )
        return pb.UpdateSubscriberStatus()
