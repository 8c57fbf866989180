"""Arguments of every kind for every call of a store."""

from __future__ import annotations

import random
from typing import Any

from importer import PARENT, TXN
from store_world import World, writer

from penstock.model.policies import ScaleType
from penstock.ports.data.attributes import AttributeChange
from penstock.ports.data.imports import ImportedChunk
from penstock.ports.data.limits import AppendLimit, LimitAction
from penstock.ports.data.rates import RateWatch
from penstock.ports.data.segments import Append
from penstock.ports.data.tables import ANY_VERSION, TableCheck, TableKind, TableLength, TablePut, TableRemoval
from penstock.storage.memory.memory_log import MemoryLog

LIMIT = 20_000
NAMES = [PARENT, TXN, "s/h", "s/o", "s/none", "", "x" * 5000, "s/\udcff", "s/a\0b/1", "#epoch.", "s/é/0.#epoch.0"]
NUMBERS = [
    0,
    1,
    -1,
    7,
    2500,
    LIMIT,
    1 << 31,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    -(1 << 63),
    -(1 << 63) - 1,
    1 << 70,
    -(1 << 70),
]
BYTES = [b"", b"k", b"kk", b"v" * 600, b"v" * (LIMIT - 100), b"v" * LIMIT, b"v" * (1 << 20), b"\xff" * 9000]


class SmallFrames(World):
    def make_log(self) -> MemoryLog:
        return MemoryLog(self.log_state, max_frame_bytes=LIMIT)


def some(rng: random.Random, values: list[Any], most: int = 4) -> list[Any]:
    """None, one, some, repeated ones, or very many."""
    count = rng.choice([0, 1, 2, most, 300])
    return [rng.choice(values) for _ in range(count)] if rng.random() < 0.7 else [rng.choice(values)] * count


def calls(rng: random.Random, store: Any, *, local: bool = True) -> list[Any]:
    """One call of each kind. ``local``: those too that only a store in this process has."""
    name, other, n, m = rng.choice(NAMES), rng.choice(NAMES), rng.choice(NUMBERS), rng.choice(NUMBERS)
    data, who = rng.choice(BYTES), writer(rng.randrange(4))
    ranges = [(rng.choice(NUMBERS), rng.choice(NUMBERS)) for _ in range(rng.randrange(4))]
    request = Append(
        segment=name,
        writer=who,
        data=data,
        event_number=n,
        event_count=rng.choice([1, 1, m]),
        previous=rng.choice([-(1 << 63), m]),
        expected_offset=rng.choice([None, None, m]),
    )
    puts = [
        TablePut(key=rng.choice(BYTES), value=rng.choice(BYTES), version=rng.choice([ANY_VERSION, n]))
        for _ in some(rng, [0])
    ]
    puts += [TableCheck(key=rng.choice(BYTES), version=m) for _ in range(rng.randrange(2))]
    length = [TableLength(length=m)] if rng.random() < 0.2 else []
    updates = [
        AttributeChange(attribute=writer(rng.randrange(4)), value=rng.choice(NUMBERS), expected=rng.choice([None, n]))
        for _ in some(rng, [0])
    ]
    chunks = [
        ImportedChunk(
            name=rng.choice(["", "0/i1-1-1-0", "a" * 70_000, other]), size_bytes=n, event_count=m, index_crc32c=m
        )
        for _ in some(rng, [0])
    ]
    limit = AppendLimit(
        stream=name,
        segments=tuple(some(rng, NAMES)),
        action=rng.choice(list(LimitAction)),
        total_bytes=rng.choice([None, n]),
        total_events=rng.choice([None, m]),
    )
    watch = RateWatch(
        stream=name,
        segments=tuple(some(rng, NAMES)),
        type=rng.choice(list(ScaleType)),
        target_rate=n,
        minute_ms=m,
    )
    return [
        lambda: store.create_segment(name, rollover_bytes=n),
        lambda: store.setup_append(name, who),
        lambda: store.append(request),
        lambda: store.read(name, n, m, wait=False),
        lambda: store.info(name),
        lambda: store.infos(some(rng, NAMES)),
        lambda: store.seal("s/none"),
        lambda: store.truncate(name, n if n > 3000 or n < 0 else 0, keep=rng.random() < 0.5),
        lambda: store.release(name, n),
        lambda: store.restore(name, n),
        lambda: store.count_events(name, n, m),
        lambda: store.delete("s/none"),
        lambda: store.create_transient(name, who),
        lambda: store.merge(name, rng.choice(["s/none", "", name, other if other != TXN else ""])),
        lambda: store.get_attribute(name, who),
        lambda: store.update_attribute(name, who, n, expected=rng.choice([None, m])),
        lambda: store.create_table(name, kind=rng.choice(list(TableKind)), key_bytes=n),
        lambda: store.delete_table("s/none", must_be_empty=rng.random() < 0.5),
        lambda: store.table_update(name, [*length, *puts]),
        lambda: store.table_remove(
            name, [*length, *(TableRemoval(key=key, version=rng.choice([ANY_VERSION, n])) for key in some(rng, BYTES))]
        ),
        lambda: store.table_get(name, some(rng, BYTES)),
        lambda: store.table_scan(
            name, after=rng.choice([None, data]), limit=n, first=rng.choice([None, data]), last=rng.choice([None, data])
        ),
        lambda: store.table_delta(name, n, m),
        lambda: store.table_info(name),
        lambda: store.chunk_ranges(name, n, m),
        lambda: store.lease_chunks([name], who, until_ms=n, holder=rng.choice(["", "h" * 600, "\udcff"])),
        lambda: store.release_lease(who),
        lambda: store.finish_lease_part(who, n, m),
        lambda: store.next_event_boundary(name, n),
        lambda: store.event_ranges(name, some(rng, NUMBERS)),
        lambda: store.erase("s/none", ranges, erasure="e"),
        lambda: store.erased_ranges(name, n, m),
        lambda: store.spaces(some(rng, NAMES)),
        lambda: store.changed_segments(n),
        lambda: store.grant_import(name),
        lambda: store.adopt_chunks(name, n, chunks),
        lambda: store.limit_appends([limit] * rng.randrange(3)),
        lambda: store.measure_rates([watch] * rng.randrange(3)),
        lambda: store.segment_rates(some(rng, NAMES)),
        store.wipe_log,
        *([lambda: store.merge(name, rng.choice(["s/none", "", name]), updates=updates)] if local else []),
    ]
