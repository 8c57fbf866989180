"""Findings as text: which streams they affect, and what to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from penstock.model.damage import Damage, DamageKind
from penstock.model.errors import InvalidNameError
from penstock.model.names import parse_segment_name
from penstock.model.values.dataclass import dataclass
from penstock.ports.integrity import SCRUB_MAX_BYTES, ScrubPage

ADVICE: Mapping[DamageKind, str] = {
    DamageKind.BLOCK: "reads of these ranges are refused, reads around them go on; put the chunk back from a copy of tier 2, "
    "or truncate the stream behind it",
    DamageKind.CHUNK: "reads of these ranges are refused; put the chunk back from a copy of tier 2, or truncate behind it",
    DamageKind.INDEX: "nothing is refused: only tools read sidecars; a rebuild goes by the catalogue",
    DamageKind.ROW: "stop the store; if it cannot serve what you need: penstock rebuild --source DIR --data NEW",
    DamageKind.PAGE: "stop the store and rebuild it from tier 2: penstock rebuild --source DIR --data NEW. Of several "
    "workers, repair only this one: penstock rebuild --data DIR --worker N",
    DamageKind.LOG: "keep the directory as it is: a store does not start on it. What is flushed comes back with: "
    "penstock rebuild --source DIR --data NEW",
    DamageKind.CATALOGUE: "the store serves all it has; stop it, move catalogue/ out of tier 2, and its next start writes "
    "a new one. Until then tier 2 alone does not give all of it back",
    DamageKind.DIRECTORY: "put the file back from a copy. Without a copy: write a VERSION that holds 1; for any other file: "
    "penstock rebuild --source DIR --data NEW",
    DamageKind.SECRET: "chmod 600 what others can read; put back from a copy what is missing or damaged. Without a copy: "
    "for the key of tokens, remove the file, and the next start makes a new one; for the users, add them again with "
    "penstock user add; without the key of the audit log nothing new can be signed",
}

_PAGES_A_SECOND = 4  # pages; a rate limit holds within a quarter of a second


@dataclass(slots=True, kw_only=True)
class ScrubReport:
    """All pages of a scrub. ``cursor`` is where it stopped, None at the end."""

    checked: dict[str, int] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    cursor: str | None = None

    def take(self, page: ScrubPage) -> None:
        for name, amount in page.checked.items():
            self.checked[name] = self.checked.get(name, 0) + amount
        self.damage += [item for item in page.damage if item not in self.damage]
        self.cursor = page.cursor

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "sound": not self.damage and self.cursor is None,
            "finished": self.cursor is None,
            "cursor": self.cursor,
            "checked": self.checked,
            "damage": [item.as_json() for item in self.damage],
            "affected": affected(self.damage),
            "advice": advice(self.damage),
        }


def affected(damage: Sequence[Damage]) -> list[dict[str, Any]]:
    """Ranges of segments that cannot be read, by stream. Adjacent and overlapping ranges are joined."""
    by_segment: dict[str, list[tuple[int, int]]] = {}
    for item in damage:
        if item.segment is not None and item.start is not None and item.end is not None:
            by_segment.setdefault(item.segment, []).append((item.start, item.end))
    found: list[dict[str, Any]] = []
    for segment in sorted(by_segment):
        joined: list[list[int]] = []
        for start, end in sorted(by_segment[segment]):
            if joined and start <= joined[-1][1]:
                joined[-1][1] = max(end, joined[-1][1])
            else:
                joined.append([start, end])
        found.append({"stream": stream_of(segment), "segment": segment, "ranges": joined})
    return found


def stream_of(segment: str) -> str | None:
    """The stream that a segment belongs to, or None where it is no stream's."""
    try:
        return str(parse_segment_name(segment.partition("#trans")[0])[0])
    except InvalidNameError:
        return None


def advice(damage: Sequence[Damage]) -> list[str]:
    """What to do, one sentence for each kind of damage that was found."""
    return [f"{kind.value}: {ADVICE[kind]}" for kind in DamageKind if any(item.kind is kind for item in damage)]


async def scrub_all(
    page: Callable[[str | None, int], Awaitable[ScrubPage]],
    *,
    rate_bytes: int,
    cursor: str | None,
    now: Callable[[], float],
    pause: Callable[[float], Awaitable[None]],
    on_page: Callable[[ScrubReport], None],
) -> ScrubReport:
    """Take page after page, no faster than ``rate_bytes`` a second. ``on_page`` gets the report after each."""
    report = ScrubReport(cursor=cursor)
    size = max(1 << 16, min(SCRUB_MAX_BYTES, rate_bytes // _PAGES_A_SECOND))
    owed = now()
    while True:
        found = await page(report.cursor, size)
        report.take(found)
        on_page(report)
        if found.cursor is None:
            return report
        # Wait for the time that the bytes read cost at this rate. Idle time does not allow a burst later.
        owed = max(owed, now() - 1.0) + found.checked.get("bytes", 0) / rate_bytes
        if owed > now():
            await pause(owed - now())
