"""Places in segments that several clients were acknowledged at once, for a check that no two owners acknowledged them.

An owner that was deposed and still acknowledged would give a place that its successor gives too, or one that lies before
what its successor has already acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedEvent:
    """An acknowledged event in the only segment of a container's probe stream. ``offset`` is None if the client learned only
    that the store has it. Times in seconds of the machine's monotonic clock."""

    container: int
    event: str
    offset: int | None
    sent_s: float
    acked_s: float

    @property
    def line(self) -> str:
        """One line of the notes."""
        offset = "-" if self.offset is None else self.offset
        return f"{self.container} {offset} {self.sent_s:.6f} {self.acked_s:.6f} {self.event}"


def parse_placed(lines: Iterable[str]) -> list[PlacedEvent]:
    """A last line without its end, as a killed writer leaves it, is not there yet."""
    found = []
    for line in lines:
        if line.endswith("\n"):
            container, offset, sent, acked, event = line.rstrip("\n").split(" ", 4)
            found.append(
                PlacedEvent(
                    container=int(container),
                    event=event,
                    offset=None if offset == "-" else int(offset),
                    sent_s=float(sent),
                    acked_s=float(acked),
                )
            )
    return found


def place_anomalies(acked: Sequence[PlacedEvent], found: Mapping[int, Mapping[int, str]]) -> dict[str, list[str]]:
    """What only two owners of one container, or a loss, can explain.

    Args:
        acked: By all clients.
        found: Events that were read in the end, by container and offset.
    Returns:
        ``two_owners``: one place was acknowledged for two events, or for an event that was sent after a later place was
        acknowledged. ``misplaced``: something else is at the place, or nothing.
    """
    two: list[str] = []
    misplaced: list[str] = []
    for container in sorted({one.container for one in acked}):
        placed = [(one, one.offset) for one in acked if one.container == container and one.offset is not None]
        first: dict[int, str] = {}
        for one, offset in placed:
            if first.setdefault(offset, one.event) != one.event:
                two.append(f"container {container}: {first[offset]} and {one.event} at {offset}")
            if found.get(container, {}).get(offset) != one.event:
                misplaced.append(f"container {container}: {one.event} at {offset}")
        two += [f"container {container}: {text}" for text in _backwards(placed)]
    return {"two_owners": two, "misplaced": misplaced}


def _backwards(placed: Sequence[tuple[PlacedEvent, int]]) -> Iterable[str]:
    """Events that were sent after the acknowledgement of a place behind their own."""
    by_answer = sorted(placed, key=lambda item: item[0].acked_s)
    answered, highest, of = 0, -1, ""
    for one, offset in sorted(placed, key=lambda item: item[0].sent_s):
        while answered < len(by_answer) and by_answer[answered][0].acked_s < one.sent_s:
            earlier, at = by_answer[answered]
            if at > highest:
                highest, of = at, earlier.event
            answered += 1
        if offset <= highest:
            yield f"{one.event} at {offset} after {of} at {highest}"
