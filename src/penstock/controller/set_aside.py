"""Skip records of the controller's table that cannot be read, so that each affects only what it describes.

Background work on the records of many owners reads them here, one by one. A record is skipped if it is damaged or a newer
version wrote it. It stays unchanged, is reported once, and is counted. Source: docs/design/0006-controller.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from penstock.codec.control.record import Record
from penstock.model.errors import CorruptDataError, InvalidNameError, PenstockError, VersionTooNewError
from penstock.model.names import StreamName
from penstock.ports.data.tables import TableEntry
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Record)
T = TypeVar("T")

UNREADABLE = (CorruptDataError, VersionTooNewError)
KNOWN_MAX = 10_000
"""Number of records that are remembered as reported. With more damaged records, some are reported twice."""


class SetAside:
    """Unreadable records. The gauge ``unreadable_records`` counts those that this controller has met since its start."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._known: dict[bytes, int] = {}

    def read(self, entry: TableEntry, kind: type[R]) -> R | None:
        """Return the record, or None if it cannot be read. The entry must exist."""
        try:
            record = kind.decode(entry.value)
        except UNREADABLE as error:
            self.note(entry, error)
            return None
        if self._known.pop(entry.key, None) is not None:
            self._set_gauge()
        return record

    def stream(self, entry: TableEntry, prefix: bytes, *, last: int = 0) -> StreamName | None:
        """Return the stream in the entry's key, after ``prefix`` and before the ``last`` parts; None if there is none."""
        return self.key(entry, lambda key: StreamName.parse(_front(key[len(prefix) :].decode(), last)))

    def text(self, entry: TableEntry, prefix: bytes) -> str | None:
        """Return the entry's key after ``prefix`` as text; None if it is not text."""
        return self.key(entry, lambda key: key[len(prefix) :].decode())

    def key(self, entry: TableEntry, read: Callable[[bytes], T]) -> T | None:
        """Return what ``read`` finds in the entry's key; None if the key is not valid."""
        try:
            return read(entry.key)
        except (ValueError, IndexError, InvalidNameError, *UNREADABLE) as error:
            self.note(entry, CorruptDataError("metadata key cannot be read", key=entry.key[:80], reason=str(error)))
            return None

    def note(self, entry: TableEntry, error: PenstockError) -> None:
        """Report the record, unless this version of it was reported before."""
        if self._known.get(entry.key) == entry.version:
            return
        if len(self._known) >= KNOWN_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[entry.key] = entry.version
        self._set_gauge()
        log.error(
            "metadata record cannot be read and is skipped",
            extra={"key": entry.key[:200].decode("utf-8", "backslashreplace"), "error": str(error)},
        )

    def _set_gauge(self) -> None:
        self._telemetry.gauge("unreadable_records", len(self._known))


def _front(text: str, last: int) -> str:
    return text.rsplit("/", last)[0] if last else text
