"""How a task reads its partition, and how the plan's lease is extended meanwhile and released."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from penstock.client.retry import RETRYABLE
from penstock.model.errors import (
    SegmentNotFoundError,
    TruncatedError,
    UnsupportedError,
)
from penstock.model.names import segment_name
from penstock.model.segments import SegmentId
from penstock.model.traces.spans import Value
from penstock.spark.connect import RETRY_S, Connector, Link, Services, link
from penstock.spark.options import ReadOptions
from penstock.spark.reading.losses import say
from penstock.spark.reading.planning import (
    check_loss,
    now_ms,
)
from penstock.spark.reading.positions import Loss
from penstock.spark.reading.segment_reads import erased_ranges, lease_segments, read_bytes
from penstock.spark.worker.spans import spark_span

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.reading.plan import Share


log = logging.getLogger("penstock.spark")


def read_partition(
    connector: Connector, options: ReadOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Read a partition in a task. If there is nothing to read, Spark makes a partition without a value."""
    share: Share | None = partition.value
    if share is None:
        return
    attributes: dict[str, Value] = {"messaging.system": "penstock", "messaging.destination.name": str(share.stream)}
    with spark_span("read a partition", attributes, share.trace) as span:
        rows = 0
        for part in (share, *share.more):
            server = link(part.access or connector, options.controller)
            for batch in _read_share(server, options, schema, part):
                rows += batch.num_rows
                yield batch
        span.set("messaging.batch.message_count", rows)
        _finish_part(link(share.access or connector, options.controller), share)


def _read_share(server: Link, options: ReadOptions, schema: StructType, share: Share) -> Iterator[pa.RecordBatch]:
    from pyspark.sql.pandas.types import to_arrow_schema

    from penstock.spark.reading.scan import Shape, read_share

    shape = Shape(
        to_arrow_schema(schema, timezone="UTC"),
        share.stream,
        options.batch_rows,
        time_bound_us=share.time_bound_us,
        plain_events=options.plain_events,
    )
    _extend_lease(server, share, options.lease_ms)

    def fetch(segment: SegmentId, offset: int, size: int) -> bytes:
        try:
            return server.ask(lambda services: read_bytes(services, segment_name(share.stream, segment), offset, size))
        except (TruncatedError, SegmentNotFoundError) as error:
            # Deleted since the plan was made: its lease expired, or it was in no chunk that a lease could keep.
            begin = error.start_offset if isinstance(error, TruncatedError) else offset + size
            check_loss(share.stream, segment, offset, begin, fail=options.fail_on_data_loss)
            raise

    def lose(segment: SegmentId, start: int, end: int) -> None:
        say(share.stream, [Loss(segment=segment, start=start, end=end)])

    def erased(segment: SegmentId, start: int, end: int) -> Sequence[tuple[int, int]]:
        return server.ask(lambda services: erased_ranges(services, segment_name(share.stream, segment), start, end))

    lost = None if options.fail_on_data_loss else lose
    yield from read_share(share, shape, fetch, erased, lost)


def _finish_part(server: Link, share: Share) -> None:
    """Report that this share was read. The store releases the plan's lease after the last share.

    A task that is stopped early, for example by ``limit``, does not call this; then the lease stays until it expires.
    """
    lease, part = share.lease, share.part
    if lease is None or part is None:
        return
    _give_back(server, lease, lambda services: services.segments.finish_lease_part(lease, *part))


def release_lease(server: Link, lease: UUID) -> None:
    """End the lease of a plan for which nothing will be read."""
    _give_back(server, lease, lambda services: services.segments.release_lease(lease))


def _give_back(server: Link, lease: UUID, call: Callable[[Services], Coroutine[Any, Any, None]]) -> None:
    try:
        server.run(call)
    except UnsupportedError:
        log.debug("store of an earlier version keeps the lease until it expires. lease=%s", lease)
    except RETRYABLE as error:
        # The call must not fail only because the lease stays until it expires.
        log.warning("lease could not be released and stays until it expires. lease=%s error=%s", lease, error)


def _extend_lease(server: Link, share: Share, lease_ms: int) -> None:
    """Extend the lease on the share's chunks while it is read, if less than half of its time is left."""
    lease = share.lease
    names = {segment_name(share.stream, piece.segment) for piece in share.pieces if piece.location}
    if lease is None or not names or share.lease_until_ms - now_ms() > lease_ms // 2:
        return

    async def extend(services: Services) -> None:
        # A deleted segment cannot be leased again, but its existing lease stays. If the store has no lease left, chunks
        # may be deleted during the read; their data is then read through the store.
        await lease_segments(services.segments, sorted(names), lease, until_ms=now_ms() + lease_ms)

    server.ask(extend, full_s=RETRY_S)
