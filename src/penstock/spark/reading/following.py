"""How a query advances in a stream: ``core.cuts.read_order``, with facts from the controller."""

from __future__ import annotations

import logging
from dataclasses import replace

from penstock.core.cuts.read_order import later_of, settled
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError, NotFoundError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId, epoch_of
from penstock.ports.control.plane import ControlPlane
from penstock.spark.connect import Services
from penstock.spark.reading.planning import positions_of
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
    except NotFoundError:
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


class Bound:
    """A cut beyond which a query does not read."""

    def __init__(self, cut: StreamCut) -> None:
        self._cut = cut
        self._within: frozenset[SegmentId] | None = None

    @property
    def is_learned(self) -> bool:
        """Whether ``learn`` has been called."""
        return self._within is not None

    async def learn(self, services: Services, start: StreamCut) -> None:
        """Find the segments between ``start`` and the cut. Called once: later positions are between them as well.

        Raises: InvalidCutError if the cut is before ``start`` at some keys and after it at others.
        """
        if self._within is not None:
            return
        stream = self._cut.stream
        here, there = await positions_of(services, start), await positions_of(services, self._cut)
        if (await later(services.controller, stream, here, there))[0] == here:
            self._within = frozenset()  # The query is at the cut or past it.
        else:
            self._within = frozenset(await services.controller.cuts.segments_between(stream, start, self._cut))

    def goes_on_behind(self, segment: SegmentId) -> bool:
        """Whether the successors of the finished segment must be read."""
        return self._within is not None and segment in self._within and segment not in self._cut.positions

    def end_of(self, segment: SegmentId, length: int) -> int:
        """The offset up to which to read the segment; 0 if it is after the cut."""
        if self._within is None or segment not in self._within:
            return 0
        return max(0, self._cut.positions.get(segment, length))
