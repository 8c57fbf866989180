"""A stream's record as a caller has read it. Changes that follow from it are conditional on its version."""

from __future__ import annotations

from penstock.codec.control.streams import StreamRecord
from penstock.controller import keys
from penstock.model.names import StreamName
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.tables import TableCheck, TablePut


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """A stream's record as it was read, and the version that a change of it is conditional on.

    ``marker`` is the version of the stream's work marker where this caller has just set it.
    """

    name: StreamName
    record: StreamRecord
    version: int
    marker: int | None = None

    def put(self, record: StreamRecord) -> TablePut:
        return TablePut(key=keys.stream(self.name), value=record.encode(), version=self.version)

    def check(self) -> TableCheck:
        """Return a condition that refuses the batch if the record has changed since it was read. It changes nothing."""
        return TableCheck(key=keys.stream(self.name), version=self.version)

    def changed(self, record: StreamRecord, version: int, *, marker: int | None = None) -> StreamView:
        """The same stream after a put that gave ``version``."""
        return StreamView(name=self.name, record=record, version=version, marker=marker or self.marker)
