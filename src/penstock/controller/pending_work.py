"""Workflows under way: markers in the table for the next start, and the runs that wait in this process."""

from __future__ import annotations

from penstock.codec.control.streams import MarkerRecord
from penstock.controller import keys
from penstock.controller.metadata import Metadata, overwrite
from penstock.model.names import StreamName
from penstock.ports.data.tables import TablePut, TableRemoval

FINISHED_MAX = 1000  # ended workflows whose markers are removed together


class PendingWork:
    """Marks the streams that a start after a crash must look at."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._finished: list[TableRemoval] = []
        self.waiting: set[StreamName] = set()
        """Streams for which a run in the background has not started yet (``workflows.settle_soon``)."""

    def put(self, stream: StreamName) -> TablePut:
        """Return the marker of the stream. Write it in the same batch as the intent itself."""
        return overwrite(keys.work(stream), MarkerRecord())

    def done(self, stream: StreamName, version: int) -> None:
        """Record that the workflow begun with marker ``version`` has ended.

        ``flush`` removes the marker later, with many others: a removal now would cost every workflow one more sync, and
        a stale marker costs only a look at the next start. Beyond ``FINISHED_MAX`` the sweeper finds the marker.
        """
        if len(self._finished) < FINISHED_MAX:
            self._finished.append(TableRemoval(key=keys.work(stream), version=version))

    async def flush(self) -> None:
        """Remove the markers of ended workflows, except where a new workflow has set the marker again."""
        finished, self._finished = self._finished, []
        if finished:
            await self._metadata.remove_if_unchanged(finished)
