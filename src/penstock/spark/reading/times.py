"""When events were appended, exact to one block; and the bound of the times that writers noted.

The store keeps the time of the first and last append of each block in tier 2, and of the last change of a segment. Events
that are not tiered lie between the last block and that change. So the time of an event is exact to one block: some seconds
if little is written, less if much is written. Source: docs/reference/spark.md, "Append time".
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.moments import append_times
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError
from penstock.spark.connect import Services

_TIME_MAX_MS = 1 << 47  # about 4,400 years; times far beyond do not fit into Spark's timestamps


times_of = append_times


async def time_bound_us(services: Services, starts: Sequence[StreamCut]) -> int | None:
    """The value of ``event_time_bound`` for a batch that begins at ``starts``, one cut of each stream, in microseconds.

    Every event that an active writer of one of the streams wrote before it noted that time lies before its start. None:
    one of the streams has no bound yet, or none in milliseconds that Spark can hold.
    """
    found = [await _lower_ms(services, start) for start in starts]
    known = [lower_ms for lower_ms in found if lower_ms is not None and abs(lower_ms) <= _TIME_MAX_MS]
    # Spark takes the greatest value of a batch: each row has the bound of the slowest stream.
    return min(known) * 1000 if known and len(known) == len(found) else None


async def _lower_ms(services: Services, start: StreamCut) -> int | None:
    try:
        return (await services.controller.cuts.time_window(start)).lower_ms
    except InvalidCutError:
        # A query whose stream lost data may stand where no cut of the stream is: nothing is known until its next batch.
        return None
