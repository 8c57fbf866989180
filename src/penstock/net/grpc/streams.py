"""Pravega's calls on streams and their segments, answered by a ``ControlPlane``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.model.errors import InvalidCutError, SegmentNotFoundError
from penstock.model.identity import Action
from penstock.model.names import StreamName, check_name, segment_name
from penstock.model.segments import KeyRange, SegmentRange
from penstock.net.access.doors import TokenDesk
from penstock.net.grpc import mapping
from penstock.net.grpc.dispatch import Handler
from penstock.net.proto import Controller_pb2 as pb
from penstock.ports.control.plane import ControlPlane

_READ, _WRITE = frozenset({Action.READ}), frozenset({Action.WRITE, Action.ADMIN})
_ACCESS: Mapping[int, frozenset[Action]] = {
    pb.StreamInfo.READ: _READ,
    pb.StreamInfo.WRITE: _WRITE,
    pb.StreamInfo.READ_WRITE: _READ | _WRITE,
}
"""What Pravega's clients want a token for. All else is anything that the caller may do."""


class StreamCalls:
    """A stream from creation to deletion."""

    def __init__(self, controller: ControlPlane, tokens: TokenDesk) -> None:
        self._controller = controller
        self._tokens = tokens

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "createStream": self.create,
            "updateStream": self.update,
            "truncateStream": self.truncate,
            "sealStream": self.seal,
            "deleteStream": self.delete,
            "checkStreamExists": self.exists,
            "getStreamConfiguration": self.configuration,
            "getDelegationToken": self.delegation_token,
        }

    async def create(self, request: pb.StreamConfig) -> pb.CreateStreamStatus:
        # The controller checks names too; checked here too, so that a bad name is reported before a bad policy.
        check_name("stream", request.streamInfo.stream, internal=True)
        await self._controller.streams.create(mapping.stream_of(request.streamInfo), mapping.config_of(request))
        return pb.CreateStreamStatus()

    async def update(self, request: pb.StreamConfig) -> pb.UpdateStreamStatus:
        stream = mapping.stream_of(request.streamInfo)
        await self._controller.streams.update(stream, mapping.config_of(request))
        return pb.UpdateStreamStatus()

    async def truncate(self, request: pb.StreamCut) -> pb.UpdateStreamStatus:
        cut = mapping.cut_of(request)
        await self._controller.streams.truncate(cut.stream, cut)
        return pb.UpdateStreamStatus()

    async def seal(self, request: pb.StreamInfo) -> pb.UpdateStreamStatus:
        await self._controller.streams.seal(mapping.stream_of(request))
        return pb.UpdateStreamStatus()

    async def delete(self, request: pb.StreamInfo) -> pb.DeleteStreamStatus:
        await self._controller.streams.delete(mapping.stream_of(request))
        return pb.DeleteStreamStatus()

    async def exists(self, request: pb.StreamInfo) -> pb.ExistsResponse:
        return pb.ExistsResponse(exists=await self._controller.streams.exists(mapping.stream_of(request)))

    async def configuration(self, request: pb.StreamInfo) -> pb.StreamConfig:
        stream = mapping.stream_of(request)
        return mapping.config_message(stream, await self._controller.streams.config(stream))

    async def delegation_token(self, request: pb.StreamInfo) -> pb.DelegationToken:
        """Empty where segments need no tokens. The Java client asks before nearly every request."""
        if not self._tokens.is_open:
            return pb.DelegationToken()
        wanted = _ACCESS.get(request.accessOperation)
        return pb.DelegationToken(delegationToken=self._tokens.token(mapping.stream_of(request), wanted=wanted))


class SegmentCalls:
    """The present and past segments of a stream, and where they are served."""

    def __init__(self, controller: ControlPlane, tokens: TokenDesk) -> None:
        self._controller = controller
        self._tokens = tokens

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "getCurrentSegments": self.current,
            "getEpochSegments": self.of_epoch,
            "getSegments": self.head,
            "getSegmentsImmediatlyFollowing": self.successors,
            "getSegmentsImmediatelyFollowing": self.successors,
            "getSegmentsBetween": self.between,
            "scale": self.scale,
            "checkScale": self.check_scale,
            "getURI": self.uri,
            "isSegmentValid": self.is_active,
            "isStreamCutValid": self.is_cut_valid,
        }

    async def current(self, request: pb.StreamInfo) -> pb.SegmentRanges:
        stream = mapping.stream_of(request)
        return self._ranges(stream, await self._controller.layout.current(stream))

    async def of_epoch(self, request: pb.GetEpochSegmentsRequest) -> pb.SegmentRanges:
        stream = mapping.stream_of(request.streamInfo)
        return self._ranges(stream, await self._controller.layout.of_epoch(stream, request.epoch))

    def _ranges(self, stream: StreamName, found: Sequence[SegmentRange]) -> pb.SegmentRanges:
        message = mapping.ranges_message(stream, found)
        message.delegationToken = self._tokens.token_or_none(stream)
        return message

    async def head(self, request: pb.GetSegmentsRequest) -> pb.SegmentsAtTime:
        """The head, whatever time is requested, as in Pravega.

        A segment that has not started is reported at offset 0. Pravega's readers would send any other offset to the
        store. They would find a segment that was left out only after they had seen all its predecessors end. So the
        reply is not a cut; the native ``Head`` returns one.
        """
        stream = mapping.stream_of(request.streamInfo)
        head = await self._controller.cuts.head(stream)
        return pb.SegmentsAtTime(
            segments=[
                pb.SegmentsAtTime.SegmentLocation(
                    segmentId=mapping.segment_message(stream, segment), offset=max(0, head.positions[segment])
                )
                for segment in sorted(head.positions)
            ],
            delegationToken=self._tokens.token_or_none(stream),
        )

    async def successors(self, request: pb.SegmentId) -> pb.SuccessorResponse:
        stream = mapping.stream_of(request.streamInfo)
        items = await self._controller.layout.successors(stream, mapping.segment_of(request.segmentId))
        return pb.SuccessorResponse(
            segments=[mapping.successor_message(stream, item) for item in items],
            delegationToken=self._tokens.token_or_none(stream),
        )

    async def between(self, request: pb.StreamCutRange) -> pb.StreamCutRangeResponse:
        stream = mapping.stream_of(request.streamInfo)
        start = mapping.positions_of(stream, getattr(request, "from"))  # a keyword
        end = mapping.positions_of(stream, request.to)
        segments = await self._controller.cuts.segments_between(stream, start, end)
        return pb.StreamCutRangeResponse(
            segments=[mapping.segment_message(stream, item) for item in segments],
            delegationToken=self._tokens.token_or_none(stream),
        )

    async def scale(self, request: pb.ScaleRequest) -> pb.ScaleResponse:
        stream = mapping.stream_of(request.streamInfo)
        result = await self._controller.layout.scale(
            stream,
            sealed=[mapping.segment_of(item) for item in request.sealedSegments],
            new_ranges=[KeyRange(low=item.start, high=item.end) for item in request.newKeyRanges],
        )
        segments = [mapping.range_message(stream, item) for item in result.segments]
        return pb.ScaleResponse(segments=segments, epoch=result.epoch_before)

    async def check_scale(self, request: pb.ScaleStatusRequest) -> pb.ScaleStatusResponse:
        status = await self._controller.layout.scale_status(mapping.stream_of(request.streamInfo), request.epoch)
        return pb.ScaleStatusResponse(status=mapping.SCALE_STATUSES[status])

    async def uri(self, request: pb.SegmentId) -> pb.NodeUri:
        """Asked before nearly every request, also for tables: it does not check that anything exists."""
        stream = mapping.stream_of(request.streamInfo)
        endpoint = await self._controller.layout.endpoint(segment_name(stream, mapping.segment_of(request.segmentId)))
        return pb.NodeUri(endpoint=endpoint.host, port=endpoint.port)

    async def is_active(self, request: pb.SegmentId) -> pb.SegmentValidityResponse:
        stream = mapping.stream_of(request.streamInfo)
        active = await self._controller.layout.is_active(stream, mapping.segment_of(request.segmentId))
        return pb.SegmentValidityResponse(response=active)

    async def is_cut_valid(self, request: pb.StreamCut) -> pb.StreamCutValidityResponse:
        stream = mapping.stream_of(request.streamInfo)
        try:
            valid = await self._controller.cuts.is_valid(stream, mapping.positions_of(stream, request.cut))
        except (InvalidCutError, SegmentNotFoundError):
            valid = False  # whatever is wrong with it, "not valid" is the answer
        return pb.StreamCutValidityResponse(response=valid)
