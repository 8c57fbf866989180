"""Sums over the decisions of one task: small rows that add up over all tasks. Needs numpy and pyarrow."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.retention.facts import Advance, Drop, RetentionRule
from penstock.spark.fleet.screen import CODES, RULES
from penstock.spark.fleet.verdicts import Verdicts

TODAY, CHANGE = "today", "change"
KEYS = ("side", "kind", "scope", "name", "text", "day", "place")
SUMS = ("streams", "losing", "bytes", "events", "uncounted", "held_bytes", "moved", "lost_bytes", "dropped", "deleted")
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in KEYS[:5]),
        ("day", pa.int64()),
        ("place", pa.int64()),
        *((name, pa.int64()) for name in SUMS),
    ]
)
LARGEST = 20
"""How many of the streams that lose most, and how many errors, each task reports."""

_Key = tuple[str, str, str, str, str, int, int]


class Tally:
    """Counts. Kinds of rows: ``scope``, ``rule``, ``day``, ``subscriber``, ``drop``, ``stream`` (the largest), ``reached``,
    ``refused``, ``errors`` (all) and ``error`` (the first); ``subscribed`` (the number of subscribers) and ``holder`` (each
    of them: in ``text`` its fields as JSON, in ``held_bytes`` and ``bytes`` what it holds and its lag).

    ``streams``: streams with a decision; ``losing``: those that lose data; ``uncounted``: losing ones whose events were
    not counted; ``moved``: subscribers moved past unread data; ``lost_bytes``: what they lose; ``held_bytes``: what
    only a hold keeps.
    """

    def __init__(self) -> None:
        self._sums: dict[_Key, list[int]] = {}
        self._largest: dict[str, list[tuple[int, str, str, str]]] = {TODAY: [], CHANGE: []}
        self._errors = 0

    def _add(self, key: _Key, sums: Sequence[int]) -> None:
        found = self._sums.get(key)
        if found is None:
            self._sums[key] = list(sums)
        else:
            for place, value in enumerate(sums):
                found[place] += value

    def error(self, source: str, place: int, text: str) -> None:
        """Record a row that could not be used. All are counted; only the first are listed."""
        self._add(("", "errors", "", "", "", 0, 0), _sums(streams=1))
        self._errors += 1
        if self._errors <= LARGEST:
            self._add(("", "error", "", source, text, 0, place), _sums(streams=1))

    def changed(self, streams: int, refused: Iterable[str]) -> None:
        """Count the streams that the change applies to, and those whose policy refuses it, by error text."""
        self._add((CHANGE, "reached", "", "", "", 0, 0), _sums(streams=streams))
        for text, count in Counter(refused).items():
            self._add((CHANGE, "refused", "", "", text, 0, 0), _sums(streams=count))

    def subscribed(self, fields: Mapping[str, Any]) -> None:
        """Add a subscriber with its ``subscriber_fields``. All are counted and reported."""
        self._add(("", "subscribed", "", "", "", 0, 0), _sums(streams=1))
        held, lag = max(0, fields["held_bytes"] or 0), fields["lag_bytes"]
        key = ("", "holder", "", fields["stream"], json.dumps(fields), 0, 0)
        self._add(key, _sums(held_bytes=held, bytes=lag))

    def take(self, side: str, verdicts: Verdicts, scopes: Sequence[str], names: Sequence[str]) -> None:
        """Add the decisions of one batch."""
        count = len(verdicts.codes)
        sums = np.zeros((count, len(SUMS)), np.int64)
        sums[~verdicts.null, 0] = 1
        rules = verdicts.codes.copy()
        for row, item in verdicts.effects.items():
            if not item.is_felt:
                continue
            advances = (*item.expire, *item.evict)
            if item.delete_stream:
                rules[row] = CODES[RetentionRule.IDLE_STREAM]
            losing = item.gone_bytes > 0 or item.delete_stream
            sums[row] = _sums(
                streams=1,
                losing=int(losing),
                bytes=item.gone_bytes,
                events=item.events or 0,
                uncounted=int(item.events is None),
                held_bytes=item.held_bytes,
                moved=len(advances),
                lost_bytes=sum(advance.bytes for advance in advances),
                dropped=len(item.drop),
                deleted=int(item.delete_stream),
            )
            if advances or item.drop:
                self._take_hurt(side, advances, item.drop)
            if item.gone_bytes:
                _keep(self._largest[side], (item.gone_bytes, scopes[row], names[row], RULES[rules[row]].word))
        coded = pa.array(scopes, pa.string()).dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False)
        for scope, found in zip(
            coded.dictionary.to_pylist(), _grouped(codes, sums, len(coded.dictionary)), strict=True
        ):
            self._add((side, "scope", scope, "", "", 0, 0), found)
        used = ~verdicts.null
        for rule, found in zip(RULES, _grouped(rules[used], sums[used], len(RULES)), strict=True):
            if found[0]:
                self._add((side, "rule", "", "", rule.word, 0, 0), found)
        self._take_days(side, verdicts)

    def _take_hurt(self, side: str, advances: Iterable[Advance], drops: Iterable[Drop]) -> None:
        for item in advances:
            counted = _sums(
                streams=1, lost_bytes=item.bytes, events=item.events or 0, uncounted=int(item.events is None)
            )
            self._add((side, "subscriber", "", item.subscriber, item.rule.word, 0, 0), counted)
        for drop in drops:
            self._add((side, "drop", "", drop.subscriber, drop.rule.word, 0, 0), _sums(streams=1))

    def _take_days(self, side: str, verdicts: Verdicts) -> None:
        days = [day for item in verdicts.effects.values() for day in item.days]
        if not days:
            return
        sums = np.zeros((len(days), len(SUMS)), np.int64)
        sums[:, SUMS.index("losing")] = 1
        sums[:, SUMS.index("bytes")] = [day.bytes for day in days]
        sums[:, SUMS.index("events")] = [day.events or 0 for day in days]
        sums[:, SUMS.index("uncounted")] = [day.events is None for day in days]
        known, codes = np.unique([day.day for day in days], return_inverse=True)
        for day, found in zip(known.tolist(), _grouped(codes, sums, len(known)), strict=True):
            self._add((side, "day", "", "", "", day, 0), found)

    def batch(self) -> Any:
        """All rows."""
        sums = dict(self._sums)
        for side, items in self._largest.items():
            for size, scope, name, rule in items:
                found = sums[side, "stream", scope, name, rule, 0, 0] = [0] * len(SUMS)
                found[SUMS.index("bytes")] = size
        columns: list[Any] = [[key[place] for key in sums] for place in range(len(KEYS))]
        columns += [[found[place] for found in sums.values()] for place in range(len(SUMS))]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _sums(**sums: int) -> list[int]:
    return [sums.get(name, 0) for name in SUMS]


def _grouped(codes: Any, sums: Any, groups: int) -> list[list[int]]:
    """The rows of each group added up."""
    found = np.zeros((groups, sums.shape[1]), np.int64)
    np.add.at(found, codes, sums)
    added: list[list[int]] = found.tolist()
    return added


def _keep(largest: list[tuple[int, str, str, str]], item: tuple[int, str, str, str]) -> None:
    if len(largest) < LARGEST:
        heapq.heappush(largest, item)
    else:
        heapq.heappushpop(largest, item)
