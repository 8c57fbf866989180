"""The native calls: what the ports offer beyond Pravega's controller. Described in docs/formats/native-api.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version

from penstock.model.errors import InvalidArgumentError, UnsupportedError
from penstock.net.grpc import mapping
from penstock.net.grpc import native_mapping as own
from penstock.net.grpc.dispatch import Handler
from penstock.net.grpc.erasure import ErasureCalls
from penstock.net.grpc.retention import RetentionCalls
from penstock.net.proto import Controller_pb2 as pb
from penstock.net.proto import native_pb2 as native
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.transactions import TransactionStatus
from penstock.ports.data.imports import ChunkImports
from penstock.ports.data.service import SegmentService
from penstock.ports.integrity import Scrubbable


class NativeCalls:
    """The service ``penstock.v1.Native``."""

    def __init__(
        self, controller: ControlPlane, segments: SegmentService, *, store_id: str, more: Sequence[str] = ()
    ) -> None:
        """``more``: what the server can do beyond these calls."""
        self._controller = controller
        self._segments = segments
        self._store_id = store_id
        self._more = more
        self._version = version("penstock")
        self._retention = RetentionCalls(controller)
        self._erasures = ErasureCalls(controller)

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "Info": self.info,
            "DescribeStream": self.describe,
            "DeleteStream": self.delete_stream,
            "Head": self.head,
            "Tail": self.tail,
            "SegmentRanges": self.segment_ranges,
            "Endpoint": self.endpoint,
            "CommitBatch": self.commit_batch,
            "LastBatch": self.last_batch,
            "JoinTransaction": self.join_transaction,
            "CommitEvents": self.commit_events,
            "ListReaderGroups": self.list_groups,
            "DeleteReaderGroup": self.delete_group,
            "UpdateSubscriberCut": self.update_cut,
            "ChunkRanges": self.chunk_ranges,
            "ErasedRanges": self.erased_ranges,
            "LeaseChunks": self.lease_chunks,
            "SegmentInfos": self.segment_infos,
            "Measure": self.measure,
            "ReleaseLease": self.release_lease,
            "FinishLeasePart": self.finish_lease_part,
            "Spaces": self.spaces,
            "CountEvents": self.count_events,
            "Disk": self.disk,
            "Scrub": self.scrub,
            "GrantImport": self.grant_import,
            "AdoptChunks": self.adopt_chunks,
            **self._retention.handlers(),
            **self._erasures.handlers(),
        }

    async def info(self, _request: native.InfoRequest) -> native.InfoResponse:
        known = sorted([*self.handlers(), *self._more])
        return native.InfoResponse(version=self._version, store_id=self._store_id, capabilities=known)

    # --- streams ---------------------------------------------------------------------------------------------

    async def describe(self, request: native.StreamRequest) -> native.StreamDescription:
        return own.description_message(await self._controller.streams.describe(mapping.stream_of(request.stream)))

    async def delete_stream(self, request: native.DeleteStreamRequest) -> native.Done:
        await self._controller.streams.delete(mapping.stream_of(request.stream), seal=request.seal)
        return native.Done()

    async def head(self, request: native.StreamRequest) -> pb.StreamCut:
        return mapping.cut_message(await self._controller.cuts.head(mapping.stream_of(request.stream)))

    async def tail(self, request: native.StreamRequest) -> pb.StreamCut:
        return mapping.cut_message(await self._controller.cuts.tail(mapping.stream_of(request.stream)))

    async def segment_ranges(self, request: native.SegmentRangesRequest) -> pb.SegmentRanges:
        stream = mapping.stream_of(request.stream)
        wanted = [mapping.segment_of(item) for item in request.segments]
        return mapping.segment_ranges_message(stream, await self._controller.layout.ranges(stream, wanted))

    async def endpoint(self, request: native.EndpointRequest) -> pb.NodeUri:
        found = await self._controller.layout.endpoint(_named(request.segment))
        return pb.NodeUri(endpoint=found.host, port=found.port)

    # --- batches ---------------------------------------------------------------------------------------------

    async def commit_batch(self, request: native.CommitBatchRequest) -> native.CommitBatchResponse:
        committed = await self._controller.batches.commit(
            mapping.stream_of(request.stream),
            writer=_writer(request.writer),
            batch=request.batch,
            transactions=[mapping.transaction_of(item) for item in request.transactions],
            source=own.query_source_of(request.source) if request.HasField("source") else None,
            one_job=request.one_job,
        )
        return native.CommitBatchResponse(committed=committed)

    async def last_batch(self, request: native.LastBatchRequest) -> native.LastBatchResponse:
        stream = mapping.stream_of(request.stream)
        source = own.query_source_of(request.source) if request.HasField("source") else None
        batch = await self._controller.batches.last(stream, writer=_writer(request.writer), source=source)
        return native.LastBatchResponse(batch=batch)

    async def join_transaction(self, request: native.JoinTransactionRequest) -> native.JoinTransactionResponse:
        stream = mapping.stream_of(request.stream)
        key = mapping.uuid_of(request.key, field="key")
        joined = await self._controller.transactions.join(stream, key, lease_ms=request.lease_ms)
        return native.JoinTransactionResponse(
            transaction=mapping.transaction_message(joined.id),
            segments=[mapping.range_message(stream, item) for item in joined.segments],
        )

    async def commit_events(self, request: native.CommitEventsRequest) -> native.CommitEventsResponse:
        return await answer_commit_events(self._controller, request)

    # --- reader groups ---------------------------------------------------------------------------------------

    async def list_groups(self, request: native.ListReaderGroupsRequest) -> native.ListReaderGroupsResponse:
        groups = await self._controller.groups.list(mapping.scope_of(request.scope))
        return native.ListReaderGroupsResponse(groups=groups)

    async def delete_group(self, request: native.DeleteReaderGroupRequest) -> native.Done:
        known = request.HasField("group_id")
        group_id = mapping.uuid_of(request.group_id, field="group_id") if known else None
        await self._controller.groups.delete(mapping.scope_of(request.scope), request.group, group_id=group_id)
        return native.Done()

    async def update_cut(self, request: native.UpdateSubscriberCutRequest) -> native.Done:
        known = request.HasField("group_id")
        await self._controller.subscribers.publish(
            request.subscriber,
            group_id=mapping.uuid_of(request.group_id, field="group_id") if known else None,
            generation=request.generation if request.HasField("generation") else None,
            cut=mapping.cut_of(request.cut),
            source=own.query_source_of(request.source) if request.HasField("source") else None,
        )
        return native.Done()

    # --- chunks ----------------------------------------------------------------------------------------------

    async def chunk_ranges(self, request: native.ChunkRangesRequest) -> native.ChunkRangesResponse:
        if not 0 <= request.start <= request.end:
            raise InvalidArgumentError("range is not ordered", start=request.start, end=request.end)
        ranges = await self._segments.chunk_ranges(_named(request.segment), request.start, request.end)
        return native.ChunkRangesResponse(ranges=[own.chunk_message(item) for item in ranges])

    async def erased_ranges(self, request: native.ErasedRangesRequest) -> native.ErasedRangesResponse:
        found = await self._segments.erased_ranges(_named(request.segment), request.start, request.end)
        return own.bounds_message(found)

    async def lease_chunks(self, request: native.LeaseChunksRequest) -> native.Done:
        lease = mapping.uuid_of(request.lease, field="lease")
        await self._segments.lease_chunks(
            _named(request.segment), lease, until_ms=request.until_ms, holder=request.holder
        )
        return native.Done()

    async def release_lease(self, request: native.ReleaseLeaseRequest) -> native.Done:
        await self._segments.release_lease(mapping.uuid_of(request.lease, field="lease"))
        return native.Done()

    async def finish_lease_part(self, request: native.FinishLeasePartRequest) -> native.Done:
        lease = mapping.uuid_of(request.lease, field="lease")
        await self._segments.finish_lease_part(lease, request.part, request.parts)
        return native.Done()

    async def segment_infos(self, request: native.SegmentInfosRequest) -> native.SegmentInfosResponse:
        found = await self._segments.infos([_named(name) for name in request.segments])
        return native.SegmentInfosResponse(infos=[own.info_message(found[name]) for name in sorted(found)])

    async def measure(self, request: native.MeasureRequest) -> native.MeasureResponse:
        stream = mapping.stream_of(request.stream)
        spans = await self._controller.cuts.measure(stream, mapping.cut_of(request.start), mapping.cut_of(request.end))
        return native.MeasureResponse(spans=[own.span_message(item) for item in spans])

    async def spaces(self, request: native.SpacesRequest) -> native.SpacesResponse:
        found = await self._segments.spaces(list(request.segments))
        return native.SpacesResponse(spaces=[own.space_message(found[name]) for name in sorted(found)])

    async def count_events(self, request: native.CountEventsRequest) -> native.CountEventsResponse:
        events = await self._segments.count_events(_named(request.segment), request.start, request.end)
        return native.CountEventsResponse(events=events)

    async def disk(self, _request: native.DiskRequest) -> native.DiskResponse:
        return own.disk_message(await self._segments.disk())

    async def grant_import(self, request: native.GrantImportRequest) -> native.ImportGrant:
        return own.grant_message(await self._imports().grant_import(_named(request.segment)))

    async def adopt_chunks(self, request: native.AdoptChunksRequest) -> native.AdoptChunksResponse:
        chunks = [own.imported_of(item) for item in request.chunks]
        length = await self._imports().adopt_chunks(_named(request.segment), request.offset, chunks)
        return native.AdoptChunksResponse(length=length)

    def _imports(self) -> ChunkImports:
        if not isinstance(self._segments, ChunkImports):
            raise UnsupportedError("this store adopts no chunks")
        return self._segments

    async def scrub(self, request: native.ScrubRequest) -> native.ScrubResponse:
        if not isinstance(self._segments, Scrubbable):
            raise UnsupportedError("this store cannot be scrubbed while it runs")
        cursor = request.cursor if request.HasField("cursor") else None
        return own.scrub_message(await self._segments.scrub(cursor, request.max_bytes))


async def answer_commit_events(
    controller: ControlPlane, request: native.CommitEventsRequest
) -> native.CommitEventsResponse:
    """The answer, whichever way the request came."""
    status = await controller.transactions.commit(
        mapping.stream_of(request.stream),
        mapping.transaction_of(request.transaction),
        blocks=[own.block_of(item) for item in request.blocks],
    )
    return native.CommitEventsResponse(committed=status is TransactionStatus.COMMITTED)


def _named(segment: str) -> str:
    if not segment:
        raise InvalidArgumentError("a segment needs a name")
    return segment


def _writer(name: str) -> str:
    if not name:
        raise InvalidArgumentError("a writer of batches needs a name")
    return name
