"""What jobs read of a stream with their own tasks: whole shares, verified, from tier 2 or else from the store."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.spark.connect import Connector, Services, link
from penstock.spark.options import ReadOptions
from penstock.spark.reading.planning import now_ms
from penstock.spark.reading.scan import Erased, Fetch
from penstock.spark.reading.segment_reads import erased_ranges, lease_segments, read_bytes


def check_plain(options: ReadOptions) -> None:
    """Raise InvalidArgumentError if the options ask for records, which a job that takes events as bytes would ignore."""
    if options.records:
        raise InvalidArgumentError(
            "this job takes events as they are; use penstock spark lake --record, or a query, for the parts of records",
            option="event_format",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a stream is served. Plain values, for tasks."""

    connector: Connector
    controller: str
    stream: StreamName

    def fetch(self) -> Fetch:
        """Bytes of the stream's segments from the store, for what a task cannot read from tier 2 itself."""
        server = link(self.connector, self.controller)

        def fetch(segment: SegmentId, offset: int, size: int) -> bytes:
            return server.ask(lambda services: read_bytes(services, segment_name(self.stream, segment), offset, size))

        return fetch

    def erased(self) -> Erased:
        """The erased ranges of the stream's segments, which a task skips."""
        server = link(self.connector, self.controller)

        def erased(segment: SegmentId, start: int, end: int) -> Sequence[tuple[int, int]]:
            return server.ask(lambda services: erased_ranges(services, segment_name(self.stream, segment), start, end))

        return erased


async def renew(
    services: Services,
    stream: StreamName,
    segments: Sequence[SegmentId],
    lease: UUID,
    *,
    lease_ms: int,
    holder: str,
) -> None:
    """Keep the chunks of these segments for this time from now. Deleted chunks are skipped. If the store has no lease
    left, chunks may be deleted during the job; their data is then read through the store."""
    names = [segment_name(stream, segment) for segment in segments]
    await lease_segments(services.segments, names, lease, until_ms=now_ms() + lease_ms, holder=holder)
