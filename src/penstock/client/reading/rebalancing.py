"""How one reader of a group behaves."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.reading.reader import OnTruncated


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReaderOptions:
    """How a reader treats truncated data, and what records its progress; see ``AsyncReaderGroup.reader``."""

    on_truncated: OnTruncated
    auto_commit: bool
    append_times: bool
