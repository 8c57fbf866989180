"""Decisions on many streams as columns of an Arrow table, one row per stream.

Source: docs/formats/fleet.md, "Decisions". Needs numpy and pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.cuts.order import Positions
from penstock.core.retention.days import FreedDay, freed_by_day, gone_bytes, merged_days
from penstock.core.retention.facts import Advance, Drop, WriterState
from penstock.core.retention.planner import RetentionDecision, RetentionFacts
from penstock.core.retention.settlement import settle
from penstock.model.values.dataclass import dataclass
from penstock.spark.fleet.layout import CUT
from penstock.spark.fleet.screen import ASK, CODES, RULES, Codes

VERSION = 1
VERSION_KEY = b"penstock.fleet.decisions"

ADVANCE = pa.struct([("subscriber", pa.string()), ("bytes", pa.int64()), ("events", pa.int64()), ("rule", pa.string())])
DAY = pa.struct([("day", pa.date32()), ("bytes", pa.int64()), ("events", pa.int64())])
VERDICT = pa.struct(
    [
        ("rule", pa.string()),
        ("candidate", CUT),
        ("truncate", CUT),
        ("frees_bytes", pa.int64()),
        ("gone_bytes", pa.int64()),
        ("events", pa.int64()),
        ("held_bytes", pa.int64()),
        ("expire", pa.list_(ADVANCE)),
        ("evict", pa.list_(ADVANCE)),
        ("drop", pa.list_(pa.string())),
        ("delete_stream", pa.bool_()),
        ("writers", pa.string()),
        ("days", pa.list_(DAY)),
    ]
)
SCHEMA = pa.schema(
    [
        ("scope", pa.string()),
        ("name", pa.string()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("place", pa.int64()),
        ("at_ms", pa.int64()),
        ("today", VERDICT),
        ("change", VERDICT),
        ("refused", pa.string()),
        ("error", pa.string()),
    ],
    metadata={VERSION_KEY: str(VERSION).encode()},
)
_WORDS = pa.array([rule.word for rule in RULES])


@dataclass(slots=True)
class Effect:
    """The result of all decisions until nothing is due. ``code``: of the rule that gives the furthest cut;
    ``gone_bytes``: what they free, or all of a stream that they delete; ``events``, ``days``: of these bytes;
    ``held_bytes``: what they would also free without holds; ``writers``: the verdict for writers afterwards.

    No object of the planner is kept: thousands of its answers would slow the garbage collector.
    """

    code: int
    candidate: Positions | None
    truncate: Positions | None
    frees_bytes: int
    gone_bytes: int
    events: int | None
    held_bytes: int
    expire: tuple[Advance, ...]
    evict: tuple[Advance, ...]
    drop: tuple[Drop, ...]
    delete_stream: bool
    writers: str
    days: Sequence[FreedDay]

    @property
    def is_felt(self) -> bool:
        """Whether data is deleted or held, or a subscriber or the stream is affected."""
        return bool(self.gone_bytes or self.held_bytes or self.expire or self.evict or self.drop or self.delete_stream)


def effect_of(facts: RetentionFacts, *, now_ms: int) -> Effect:
    """What the planner decides until nothing is due, the data that only a hold keeps, and the days on which deleted
    data was written.

    Raises: InvalidCutError.
    """
    found = settle(facts, now_ms=now_ms)
    main, last, frees = found.main, found.last, found.frees_bytes
    held = 0
    if facts.holds and main.candidate is not None:
        held = settle(replace(facts, holds=()), now_ms=now_ms).frees_bytes - frees
    days = merged_days([freed_by_day(item) for item in found.decisions])
    counts = [item.events for item in days]
    return Effect(
        CODES[main.rule],
        main.candidate,
        main.truncate,
        frees,
        sum(gone_bytes(item) for item in found.decisions),
        None if None in counts else sum(counts),  # type: ignore[arg-type]
        held,
        found.expirations,
        found.evictions,
        found.drops,
        last.deletes_stream,
        stopped(last),
        days,
    )


def stopped(decision: RetentionDecision) -> str:
    """The state for writers now: ``open`` unless a quota is reached."""
    return decision.writers.state.word if decision.writers.exceeded else WriterState.OPEN.word


class Verdicts:
    """A builder for the decisions of one batch. Rows without a decision are null."""

    def __init__(self, codes: Codes) -> None:
        """``codes``: of the rule for each row that is settled, ``ASK`` for the others."""
        self.codes = codes
        self.effects: dict[int, Effect] = {}
        self.null = np.zeros(len(codes), np.bool_)

    def asked(self) -> list[int]:
        found: list[int] = np.flatnonzero(self.codes == ASK).tolist()
        return found

    def put(self, row: int, effect: Effect) -> None:
        self.effects[row] = effect
        self.codes[row] = effect.code

    def skip(self, row: int) -> None:
        """Mark that the row has no decision."""
        self.null[row] = True
        self.effects.pop(row, None)

    def array(self) -> Any:
        """The column."""
        count = len(self.codes)
        effects = self.effects
        frees, gone, held = (np.zeros(count, np.int64) for _ in range(3))
        deletes = np.zeros(count, np.bool_)
        events: list[int | None] = [0] * count
        writers = [WriterState.OPEN.word] * count
        for row, item in effects.items():
            frees[row], gone[row], held[row] = item.frees_bytes, item.gone_bytes, item.held_bytes
            events[row], deletes[row], writers[row] = item.events, item.delete_stream, item.writers
        columns = [
            _WORDS.take(pa.array(np.where(self.codes == ASK, 0, self.codes))),
            _cuts(count, {row: item.candidate for row, item in effects.items()}),
            _cuts(count, {row: item.truncate for row, item in effects.items()}),
            pa.array(frees),
            pa.array(gone),
            pa.array(events, pa.int64()),
            pa.array(held),
            _advances(count, {row: item.expire for row, item in effects.items() if item.expire}),
            _advances(count, {row: item.evict for row, item in effects.items() if item.evict}),
            _drops(count, {row: item.drop for row, item in effects.items() if item.drop}),
            pa.array(deletes),
            pa.array(writers),
            _days(count, {row: item.days for row, item in effects.items() if item.days}),
        ]
        mask = pa.array(self.null) if self.null.any() else None
        return pa.StructArray.from_arrays(columns, fields=list(VERDICT), mask=mask)


def _starts(count: int, lengths: Mapping[int, int]) -> Any:
    sizes = np.zeros(count + 1, np.int32)
    for row, length in lengths.items():
        sizes[row + 1] = length
    return pa.array(np.cumsum(sizes, dtype=np.int32))


def _cuts(count: int, cuts: Mapping[int, Positions | None]) -> Any:
    """A column of cuts; null where there is none."""
    some = {row: cuts[row] for row in sorted(cuts) if cuts[row] is not None}
    segments: list[int] = []
    offsets: list[int] = []
    for cut in some.values():
        for segment in sorted(cut or ()):
            segments.append(segment)
            offsets.append((cut or {})[segment])
    values = pa.StructArray.from_arrays(
        [pa.array(segments, pa.int64()), pa.array(offsets, pa.int64())], fields=list(CUT.value_type)
    )
    absent = np.ones(count, np.bool_)
    absent[list(some)] = False
    starts = _starts(count, {row: len(cut or ()) for row, cut in some.items()})
    return pa.ListArray.from_arrays(starts, values, type=CUT, mask=pa.array(absent))


def _advances(count: int, advances: Mapping[int, Sequence[Advance]]) -> Any:
    found = {row: advances[row] for row in sorted(advances)}
    rows = [item for items in found.values() for item in items]
    values = pa.StructArray.from_arrays(
        [
            pa.array([item.subscriber for item in rows], pa.string()),
            pa.array([item.bytes for item in rows], pa.int64()),
            pa.array([item.events for item in rows], pa.int64()),
            pa.array([item.rule.word for item in rows], pa.string()),
        ],
        fields=list(ADVANCE),
    )
    return pa.ListArray.from_arrays(_starts(count, {row: len(items) for row, items in found.items()}), values)


def _drops(count: int, drops: Mapping[int, Sequence[Drop]]) -> Any:
    found = {row: drops[row] for row in sorted(drops)}
    names = pa.array([item.subscriber for items in found.values() for item in items], pa.string())
    return pa.ListArray.from_arrays(_starts(count, {row: len(items) for row, items in found.items()}), names)


def _days(count: int, days: Mapping[int, Sequence[FreedDay]]) -> Any:
    found = {row: days[row] for row in sorted(days)}
    rows = [item for items in found.values() for item in items]
    values = pa.StructArray.from_arrays(
        [
            pa.array([item.day for item in rows], pa.int32()).cast(pa.date32()),
            pa.array([item.bytes for item in rows], pa.int64()),
            pa.array([item.events for item in rows], pa.int64()),
        ],
        fields=list(DAY),
    )
    return pa.ListArray.from_arrays(_starts(count, {row: len(items) for row, items in found.items()}), values)
