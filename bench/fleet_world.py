"""A made-up fleet: facts of very many streams as a table of docs/formats/fleet.md, the same for the same seed.

Sizes are log-normal, most streams have one segment and no subscriber, policies go by scope; a few streams were scaled, are
held, or have a subscriber far behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.planner_json.facts_line import facts_of
from penstock.core.planner_json.requests import FactsLine
from penstock.spark.fleet.layout import CUT, HOLD, RECORD, SCHEMA, SUBSCRIBER
from penstock.spark.fleet.rows import FactsRows

NOW_MS = 1_780_000_000_000
HOUR_MS = 3_600_000
DAY_S = 86_400
BATCH = 16_384
SCOPES = 200

POLICIES: Sequence[tuple[float, Any]] = (
    (0.25, None),
    (0.20, {"type": "time", "min": 7 * DAY_S * 1000}),
    (0.15, {"retain": {"min_age_s": 30 * DAY_S, "max_age_s": 90 * DAY_S}, "backlog": {"ttl_s": 60 * DAY_S}}),
    (0.15, {"type": "size", "min": 1 << 30, "max": 10 << 30}),
    (
        0.15,
        {
            "retain": {"min_age_s": 3 * DAY_S, "min_bytes": 1 << 30, "combine": "any"},
            "unsubscribed": "release",
            "backlog": {"ttl_s": 14 * DAY_S, "max_bytes": 20 << 30, "on_exceed": "evict"},
        },
    ),
    (0.10, {"retain": {"min_age_s": DAY_S}, "backlog": {"max_bytes": 5 << 30, "on_exceed": "hold"}}),
)
_EPOCHS = {
    count: json.dumps([[{"segment": f"{n}#0", "low": n / count, "high": (n + 1) / count} for n in range(count)]])
    for count in (1, 2, 4, 8, 16)
}
_SCALED = json.dumps(
    [
        [{"segment": "0#0", "low": 0.0, "high": 1.0}],
        [{"segment": "1#1", "low": 0.0, "high": 0.5}, {"segment": "2#1", "low": 0.5, "high": 1.0}],
    ]
)


def write_fleet(path: Path, streams: int, *, seed: int = 1) -> None:
    """Write the facts of so many streams to a Parquet file."""
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for batch in batches(streams, seed=seed):
            writer.write_batch(batch)


def batches(streams: int, *, seed: int = 1) -> Iterator[Any]:
    """The facts, in batches."""
    scope_policy = np.random.default_rng(seed).choice(len(POLICIES), SCOPES, p=[share for share, _ in POLICIES])
    for number, first in enumerate(range(0, streams, BATCH)):
        random = np.random.default_rng([seed, number])
        yield _batch(random, scope_policy, first, min(BATCH, streams - first), streams)


def lines(batch: Any) -> Iterator[str]:
    """The same streams as lines of the planner's JSON."""
    rows = FactsRows(batch)
    scopes, names = rows.texts("scope"), rows.texts("name")
    for row in range(rows.rows):
        facts = rows.facts(row)
        line = FactsLine(
            id=f"{scopes[row]}/{names[row]}",
            now_ms=int(rows.now_ms[row]),
            scope=scopes[row],
            name=names[row],
            facts=facts,
        )
        yield msgspec.json.encode(facts_of(line)).decode()


def _lists(kind: Any, lengths: Any, fields: Sequence[Any]) -> Any:
    """A column of lists of structs."""
    starts = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    return pa.ListArray.from_arrays(starts, pa.StructArray.from_arrays(fields, fields=list(kind.value_type)), type=kind)


class _Streams:
    """Segments and their shares of the bytes, for cuts at any size."""

    def __init__(self, random: Any, count: int) -> None:
        self.scaled = random.random(count) < 0.05
        widths = random.choice([1, 2, 4, 8, 16], count, p=[0.6, 0.12, 0.2, 0.06, 0.02])
        self.widths = np.where(self.scaled, 2, widths)
        self.starts = np.concatenate(([0], np.cumsum(self.widths)))
        owner = np.repeat(np.arange(count), self.widths)
        place = np.arange(len(owner)) - self.starts[:-1][owner]
        self.segments = np.where(self.scaled[owner], (1 << 32) + place + 1, place)
        weight = random.gamma(4.0, size=len(owner))
        self.shares = weight / np.add.reduceat(weight, self.starts[:-1])[owner]

    def cuts(self, owners: Any, sizes: Any) -> tuple[Any, Any]:
        """A column of cuts with about so many bytes before each, and exactly how many these are."""
        lengths = self.widths[owners]
        cut = np.repeat(np.arange(len(owners)), lengths)
        starts = np.concatenate(([0], np.cumsum(lengths)))
        source = self.starts[:-1][owners[cut]] + np.arange(len(cut)) - starts[:-1][cut]
        offsets = (self.shares[source] * sizes[cut]).astype(np.int64)
        exact = np.add.reduceat(offsets, starts[:-1]) if len(cut) else np.zeros(0, np.int64)
        return _lists(CUT, lengths, [pa.array(self.segments[source]), pa.array(offsets)]), exact


def _batch(random: Any, scope_policy: Any, first: int, count: int, streams: int) -> Any:
    number = np.arange(first, first + count)
    scope = np.minimum((SCOPES * (number / streams) ** 1.5).astype(int), SCOPES - 1)
    policy = scope_policy[scope]
    made = _Streams(random, count)
    written = np.minimum(np.exp(random.normal(np.log(50e6), 2.5, count)), 2e12)
    sealed = np.where(made.scaled, (written * 0.3).astype(np.int64), 0)
    age_ms = np.exp(random.normal(np.log(6 * 24 * HOUR_MS), 1.6, count)).clip(HOUR_MS, 400 * 24 * HOUR_MS)
    subscribers, read_share = _subscribers(random, made, written, count)
    head_share = _heads(random, policy, written, age_ms, read_share)
    head_share[made.scaled] = 0.0
    # Records lie evenly from the head on, up to a little before the tail.
    records = 1 + random.geometric(0.1, count).clip(1, 100)
    owner = np.repeat(np.arange(count), records)
    place = np.arange(len(owner)) - np.concatenate(([0], np.cumsum(records)))[:-1][owner]
    share = head_share[owner] + (1 - head_share[owner]) * (place + 1) / (records[owner] + 1)
    record_cuts, record_sizes = made.cuts(owner, share * written[owner])
    record_sizes = record_sizes + sealed[owner]
    start_ms = NOW_MS - age_ms
    record_ms = (start_ms[owner] + share * age_ms[owner]).astype(np.int64)
    everyone = np.arange(count)
    tail_cuts, tail_sizes = made.cuts(everyone, written)
    tail_sizes = tail_sizes + sealed
    heads = np.flatnonzero(head_share > 0)
    head_cuts, head_sizes = made.cuts(heads, head_share[heads] * written[heads])
    head_place = np.full(count, -1)
    head_place[heads] = np.arange(len(heads))
    head_events = np.full(count, -1, np.int64)
    head_events[heads] = head_sizes // 200
    holds = (random.random(count) < 0.005).astype(int)
    held = int(holds.sum())
    no_cuts = pa.nulls(held, CUT)
    texts = [None if policy is None else json.dumps(policy) for _, policy in POLICIES]
    columns = {
        "scope": pa.array([f"team-{n:03}" for n in scope]),
        "name": pa.array([f"stream-{n}" for n in number]),
        "id": pa.nulls(count, pa.string()),
        "now_ms": pa.array(np.full(count, NOW_MS)),
        "frequency_ms": pa.array(np.full(count, 60_000)),
        "epochs": pa.array([_SCALED if s else _EPOCHS[w] for s, w in zip(made.scaled, made.widths, strict=True)]),
        "sealed": _lists(
            SCHEMA.field("sealed").type,
            made.scaled.astype(int),
            [pa.array(np.zeros(int(made.scaled.sum()), np.int64)), pa.array(sealed[made.scaled])],
        ),
        "truncated_at": head_cuts.take(pa.array(head_place, mask=head_place < 0)),
        "truncated_events": pa.array(head_events, mask=head_events < 0),
        "truncating": pa.array(np.zeros(count, bool)),
        "policy": pa.array([texts[n] for n in policy], pa.string()),
        "unreadable": pa.nulls(count, pa.string()),
        "retention_set": _lists(
            pa.list_(RECORD),
            records,
            [pa.array(record_ms), pa.array(record_sizes), pa.array(record_sizes // 200), record_cuts],
        ),
        "boundaries": pa.nulls(count, pa.list_(RECORD)),
        "subscribers": subscribers,
        "tail": pa.StructArray.from_arrays(
            [pa.array(np.full(count, NOW_MS)), pa.array(tail_sizes), pa.array(tail_sizes // 200), tail_cuts],
            fields=list(RECORD),
        ),
        "last_append_ms": pa.nulls(count, pa.int64()),
        "holds": _lists(
            pa.list_(HOLD),
            holds,
            [
                pa.array([f"case-{n}" for n in number[holds > 0]]),
                pa.array(["legal"] * held),
                pa.array(["evidence"] * held),
                pa.nulls(held, pa.int64()),
                no_cuts,
            ],
        ),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _heads(random: Any, policy: Any, written: Any, age_ms: Any, read_share: Any) -> Any:
    """Where each stream begins, as a share of its bytes: where the loop of retention has left it a minute ago.

    A few are behind, as if their policy were new; of streams without one, some were truncated by hand.
    """
    share = np.zeros(len(policy))
    for code, (_, found) in enumerate(POLICIES):
        rows = policy == code
        if found is None:
            by_hand = rows & (random.random(len(policy)) < 0.1)
            share[by_hand] = random.random(int(by_hand.sum())) * 0.8
            continue
        retain = found.get("retain", {})
        least_ms = retain.get("min_age_s", 0) * 1000 or (found["min"] if found.get("type") == "time" else 0)
        least = retain.get("min_bytes", 0) or (found["min"] if found.get("type") == "size" else 0)
        by_age = np.maximum(0, 1 - least_ms / age_ms) if least_ms else 0.0
        by_size = np.maximum(0, 1 - least / written) if least else 0.0
        share[rows] = np.minimum(np.maximum(by_age, by_size), read_share)[rows]
    behind = random.random(len(policy)) < 0.03
    return np.where(behind, share * 0.9, share)


def _subscribers(random: Any, made: _Streams, written: Any, count: int) -> tuple[Any, Any]:
    """The column, and of each stream the share of its bytes that the slowest has read."""
    counts = random.choice([0, 1, 2, 3], count, p=[0.55, 0.30, 0.10, 0.05])
    owner = np.repeat(np.arange(count), counts)
    kind = random.random(len(owner))
    # Most are nearly done, some lag, a few have never read anything.
    share = np.where(kind < 0.93, 1 - 0.02 * random.random(len(owner)), random.random(len(owner)))
    cuts, _ = made.cuts(owner, share * written[owner])
    silent = random.random(len(owner)) < 0.02
    cuts = cuts.take(pa.array(np.arange(len(owner)), mask=silent))
    place = np.arange(len(owner)) - np.concatenate(([0], np.cumsum(counts)))[:-1][owner]
    # Three in a row, each 3 apart of 8: no stream has one twice.
    names = np.array(["billing", "search", "audit-export", "spark-etl", "dashboard", "fraud", "archive", "mirror"])
    active = NOW_MS - np.where(kind < 0.93, 60_000, random.random(len(owner)) * 60 * 24 * HOUR_MS).astype(np.int64)
    nothing = pa.nulls(len(owner), pa.int64())
    fields = [pa.array(names[(owner * 5 + 3 * place) % 8]), cuts, nothing, nothing, pa.array(active)]
    read = np.ones(count)
    np.minimum.at(read, owner[~silent], share[~silent])
    return _lists(pa.list_(SUBSCRIBER), counts, fields), read
