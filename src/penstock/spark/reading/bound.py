"""The end of a streaming query, if it has one."""

from __future__ import annotations

from penstock.model.cuts import StreamCut
from penstock.model.segments import SegmentId
from penstock.spark.connect import Services
from penstock.spark.reading.following import later
from penstock.spark.reading.planning import positions_of


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
