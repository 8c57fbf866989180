"""How a query advances in a stream: ``core.cuts.read_order``, with facts from the controller."""

from __future__ import annotations

import logging
from dataclasses import replace

from penstock.core.cuts.read_order import later_of, settled
from penstock.model.errors import InvalidCutError, SegmentNotFoundError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId, epoch_of
from penstock.ports.control.plane import ControlPlane
from penstock.spark.reading.positions import Offset, Positions, to_cut

log = logging.getLogger("penstock.spark")


async def later(
    controller: ControlPlane, stream: StreamName, positions: Positions, floor: Positions
) -> tuple[Positions, list[SegmentId]]:
    """The later of two cuts, and the segments of ``positions`` that ``floor`` has passed; see ``read_order.later_of``.

    Raises: SegmentNotFoundError if the stream never had one of the segments.
    """
    ranges = await controller.layout.ranges(stream, sorted(positions.keys() | floor.keys()))
    return later_of(positions, floor, ranges)


async def repaired(controller: ControlPlane, stream: StreamName, offset: Offset) -> Offset:
    """Return the offset as a valid cut, even if an earlier version started segments before their predecessors were read.

    Such a segment waits, and later continues at its offset. Nothing is read twice, and nothing is skipped.
    Raises: InvalidCutError if the offset is not a position of the stream at all.
    """
    if len({epoch_of(segment) for segment in offset.positions}) < 2:
        return offset  # Segments of one epoch share no keys.
    try:
        ranges = await controller.layout.ranges(stream, sorted(offset.positions))
    except SegmentNotFoundError:
        return offset  # The stream was deleted. Other checks of its segments report that.
    positions, ahead = settled(offset.positions, ranges)
    if positions == offset.positions:
        return offset
    await check_offset(controller, stream, positions)
    if ahead:
        log.warning(
            "an earlier version read segments of this checkpoint before their predecessors; they wait now, and continue "
            "at their offsets. stream=%s segments=%s",
            stream,
            ", ".join(str(segment) for segment in sorted(ahead)),
        )
    return replace(offset, positions=positions, ahead=offset.ahead | ahead)


async def check_offset(controller: ControlPlane, stream: StreamName, positions: Positions) -> None:
    """Raise InvalidCutError unless the positions are a cut of the stream, so that they may go into a checkpoint."""
    if not await controller.cuts.is_valid(stream, to_cut(stream, positions)):
        raise InvalidCutError(
            "offset of the query is not a position of the stream, and was not recorded; start again with a new checkpoint "
            "location, and set start_stream_cut to the last cut that is known to be processed",
            stream=stream,
            segments=", ".join(f"{segment}={offset}" for segment, offset in sorted(positions.items())),
        )
