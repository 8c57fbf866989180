"""The audit log: entries that get their number and the hash of the one before, and the state from which they continue.

The state follows from the bytes of the audit stream. A stored state is only a place to continue from.
Source: docs/formats/audit.md, docs/design/0060-evidence.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from penstock.core.evidence.merkle import Edge, leaf_hash
from penstock.model.values.dataclass import dataclass

TILE = 256
"""Entries of a tile: hashes of entries are stored in tiles of this size."""

ORIGIN_PREFIX = "penstock/audit/"
_FRAME_BYTES = 8  # the header of an event


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """The leaf hashes of ``TILE`` entries in a row; ``offset``: where the first of them begins, bytes."""

    number: int
    offset: int
    hashes: tuple[bytes, ...]
    root: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """The log up to byte ``end`` of its segment.

    ``last``: hash of the last entry; ``open``: hashes of the entries after the last whole tile, the first of which begins
    at ``open_offset``; ``after``: the log that this one replaces.
    """

    origin: str
    end: int
    open_offset: int
    edge: Edge = field(default_factory=Edge)
    last: bytes | None = None
    open: tuple[bytes, ...] = ()
    after: Mapping[str, Any] | None = None

    @property
    def size(self) -> int:
        return self.edge.size

    def described(self) -> dict[str, Any]:
        """What the first entry of the next log says about this one."""
        return {"origin": self.origin, "size": self.size, "root": self.edge.root().hex()}

    def with_entry(self, entry: bytes) -> tuple[LogState, Tile | None]:
        """The state after one more entry, and the tile that it completes."""
        leaf = leaf_hash(entry)
        end = self.end + _FRAME_BYTES + len(entry)
        hashes = (*self.open, leaf)
        full = None
        if len(hashes) == TILE:
            root = Edge().add(hashes).root()
            full = Tile(number=self.size // TILE, offset=self.open_offset, hashes=hashes, root=root)
            hashes = ()
        state = replace(
            self,
            end=end,
            edge=self.edge.add([leaf]),
            last=leaf,
            open=hashes,
            open_offset=self.open_offset if full is None else end,
        )
        return state, full


def new_log(identifier: str, *, at: int, after: LogState | None) -> LogState:
    """An empty log whose first entry begins at byte ``at``. ``after``: the log that it replaces."""
    described = None if after is None or not after.size else after.described()
    return LogState(origin=ORIGIN_PREFIX + identifier, end=at, open_offset=at, after=described)


def chained(state: LogState, entries: Sequence[bytes]) -> tuple[list[bytes], LogState, list[Tile]]:
    """The entries with their number and the hash of the one before, the state after them, and the tiles they complete."""
    found: list[bytes] = []
    tiles: list[Tile] = []
    for entry in entries:
        fields: dict[str, Any] = {"n": state.size, "previous": None if state.last is None else state.last.hex()}
        if not state.size:
            fields["log"] = {"origin": state.origin, "after": state.after}
        # The entry is a JSON object with fields. Its own bytes stay as they were decided.
        more = json.dumps(fields, separators=(",", ":")).encode()
        numbered = entry[:-1] + b"," + more[1:]
        state, full = state.with_entry(numbered)
        found.append(numbered)
        if full is not None:
            tiles.append(full)
    return found, state, tiles


@dataclass(slots=True)
class Walk:
    """Follows the audit stream, entry by entry. ``state``: the log so far, None while no log has begun or where the last
    entry does not continue it; ``lost``: the log that was interrupted."""

    at: int
    state: LogState | None = None
    lost: LogState | None = None

    def passed(self, entry: bytes) -> Tile | None:
        """Follow one entry; returns the tile that it completes."""
        begins, number, previous = _place(entry)
        full = None
        if begins is not None:
            origin, after = begins
            fresh = LogState(origin=origin, end=self.at, open_offset=self.at, after=after)
            self.state, full = fresh.with_entry(entry)
        elif self.state is not None and (number, previous) == (self.state.size, self.state.last):
            self.state, full = self.state.with_entry(entry)
        elif self.state is not None:
            self.state, self.lost = None, self.state
        self.at += _FRAME_BYTES + len(entry)
        return full

    def skipped(self, upto: int) -> None:
        """Go on at byte ``upto``: what is before it cannot be read, so the next entry cannot continue the log."""
        if self.state is not None:
            self.state, self.lost = None, self.state
        self.at = upto


def _place(entry: bytes) -> tuple[tuple[str, Mapping[str, Any] | None] | None, int | None, bytes | None]:
    """The log that the entry begins, or its number and the hash of the one before."""
    try:
        fields = json.loads(entry)
        number, previous, log = fields.get("n"), fields.get("previous"), fields.get("log")
        if number == 0 and isinstance(log, dict):
            return (str(log["origin"]), log.get("after")), 0, None
        return None, number, bytes.fromhex(previous)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        # Written by an earlier version, or not an entry.
        return None, None, None
