"""A record that cannot be read costs what it says: background work goes on for everybody else, and reports it once."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from controller_world import QUIET, opened
from memory_segments import MemorySegments

from penstock.app.telemetry import Counters
from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.erasures import ErasureMarkRecord, ErasureRecord, ErasureState
from penstock.codec.control.truncations import GapRecord
from penstock.controller import keys, retention_keys
from penstock.controller.controller import Controller
from penstock.controller.metadata import overwrite
from penstock.controller.set_aside import KNOWN_MAX, SetAside
from penstock.controller.transactions.decisions import decide
from penstock.core.streams.transactions import Verb
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.model.policies import ReaderGroupRetention, StreamConfig
from penstock.model.retention import PolicyDocument, Retain
from penstock.model.segments import make_segment_id
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.transactions import TransactionStatus
from penstock.ports.data.tables import TableEntry
from penstock.testing.fakes import FakeClock

ILL, WELL = StreamName("a", "t"), StreamName("b", "u")
DAY_MS = 86_400_000
FIRST = make_segment_id(0, 0)

KINDS = (
    "audit", "audit-gap", "audit-log", "batch", "bucket", "buckets", "clock", "counter", "done", "done-at", "epoch", "erasure",
    "erasure-work", "grace", "group", "head", "hold", "hold-id", "join", "policy", "queue", "scope", "scope-policy",
    "stream", "subscriber", "tail", "tails", "txn", "work", "gone",
)  # fmt: skip
"""All there are in the table of the world below."""


def garbage(value: bytes) -> bytes:
    return b"\x00" + value[1:]


def newer(value: bytes) -> bytes:
    return json.dumps({**json.loads(value), "v": 99}).encode()


@dataclass
class Left:
    """What an earlier life has left of each stream, for background work to finish."""

    expired: dict[StreamName, UUID] = field(default_factory=dict)
    decided: dict[StreamName, UUID] = field(default_factory=dict)
    old: dict[StreamName, UUID] = field(default_factory=dict)
    due: set[bytes] = field(default_factory=set)


def _write(segments: MemorySegments, name: StreamName, size: int) -> None:
    segments.write(segment_name(name, FIRST), b"x" * size)


async def _transaction(controller: Controller, segments: MemorySegments, name: StreamName) -> UUID:
    txn = await controller.transactions.create(name, lease_ms=10_000)
    for item in txn.segments:
        segments.write(transaction_segment_name(segment_name(name, item.segment), txn.id), b"committed")
    return txn.id


async def _use(controller: Controller, segments: MemorySegments, clock: FakeClock, name: StreamName) -> None:
    await controller.scopes.create(name.scope)
    await controller.streams.create(name, StreamConfig())
    await controller.policies.set(name.scope, PolicyDocument(grace_s=3600))
    await controller.policies.set(name, PolicyDocument(retain=Retain(min_bytes=10, max_bytes=20)))
    await controller.groups.create(
        ReaderGroupConfig(
            scope=name.scope,
            name="g",
            id=UUID(int=3),
            retention=ReaderGroupRetention.MANUAL,
            start_cuts={name: StreamCut(name, {})},
        )
    )
    for _ in range(6):
        _write(segments, name, 10)
        clock.ms += 60_000
        await controller.retention.run(name)


async def _leave(
    controller: Controller, segments: MemorySegments, clock: FakeClock, name: StreamName, left: Left
) -> None:
    """Leave work of every kind: expired, decided, due, waiting."""
    ctx = controller._ctx
    left.old[name] = await _transaction(controller, segments, name)
    await controller.batches.commit(name, writer="w", batch=0, transactions=[left.old[name]])
    clock.ms += 2 * DAY_MS
    left.expired[name] = await _transaction(controller, segments, name)
    await controller.transactions.join(name, UUID(int=7), lease_ms=10_000)
    left.decided[name] = await _transaction(controller, segments, name)
    await controller.holds.add(name, owner="o", reason="r", hold_id=f"h-{name.scope}", until_ms=clock.ms + 1000)
    erasure = f"e-{name.scope}"
    gathered = ErasureRecord(
        stream=str(name), incarnation=0, state=ErasureState.GATHERING, asked={}, asked_ms=clock.ms, receipt=None
    )
    await ctx.metadata.put(
        overwrite(keys.erasure(erasure), gathered),
        overwrite(keys.erasure_mark(erasure), ErasureMarkRecord()),
    )
    await controller.drain_audit()


async def _leave_at_last(controller: Controller, clock: FakeClock, name: StreamName, left: Left) -> None:
    """Work that a continuing controller would finish at once."""
    ctx = controller._ctx
    await decide(ctx, name, left.decided[name], Verb.COMMIT)
    gap = GapRecord(count=1, first_ms=clock.ms, last_ms=clock.ms)
    entry = AuditEntry(kind=AuditKind.POLICY, target=str(name), fields={"level": "stream"})
    await ctx.metadata.put(
        ctx.work.put(name), overwrite(retention_keys.gap(f"life-{name.scope}"), gap), *ctx.audit.puts([entry])
    )


def _damage(segments: MemorySegments, kind: str, how: Callable[[bytes], bytes]) -> list[bytes]:
    """Damage all records of the kind that belong to the ill stream, or, of those that belong to none, the first."""
    entries = segments.tables[keys.TABLE].entries
    all_of = [key for key in entries if key.split(b"/")[0].decode() == kind]
    own = [key for key in all_of if b"/a/t" in key or key in (b"scope/a", b"scope-policy/a", b"group/a/g")]
    own += [key for key in all_of if key.startswith(b"hold/a/") or key.endswith((b"/h-a", b"/e-a", b"/life-a"))]
    for key in dict.fromkeys(own or all_of[:1]):
        value, version = entries[key]
        entries[key] = (how(value), version)
    return list(dict.fromkeys(own or all_of[:1]))


async def _check_well(controller: Controller, segments: MemorySegments, left: Left) -> None:
    """All that background work had to do for the stream that nobody damaged is done."""
    entries = segments.tables[keys.TABLE].entries
    data = bytes(segments.segments[segment_name(WELL, FIRST)].data)
    assert await controller.transactions.status(WELL, left.expired[WELL]) is TransactionStatus.ABORTED
    assert await controller.transactions.status(WELL, left.decided[WELL]) is TransactionStatus.COMMITTED
    assert data.count(b"committed") == 2
    assert keys.completed(WELL, left.old[WELL]) not in entries, "old outcomes are forgotten"
    assert keys.hold("b", "h-b") not in entries, "holds end"
    assert (await controller.cuts.head(WELL)).positions[FIRST] >= len(data) - 20 - 9, "retention truncates"
    assert left.due
    assert not left.due & set(entries), "what was due is given back"
    assert [key for key in entries if key.startswith(b"audit/") and entries[key][0].startswith(b'{"v":1')] == []
    assert b"audit-gap/life-b" not in entries, "gaps are reported, and go"
    assert "u" in await controller.streams.list("b")
    assert "b" in await controller.scopes.list()
    assert await controller.groups.list("b") == ["g"]
    assert [item.erasure for item in await controller.erasures.list(WELL)] == ["e-b"]
    await controller.policies.set("b", PolicyDocument(grace_s=60))
    await controller.policies.set(None, PolicyDocument(retain=Retain(max_bytes=1 << 40)))


@pytest.mark.parametrize("how", [garbage, newer], ids=["damaged", "newer"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_unreadable_record_does_not_stop_background_work_on_others(
    kind: str, how: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        segments, clock, left = MemorySegments(), FakeClock(), Left()
        async with opened(segments, clock) as controller:
            for name in (ILL, WELL):
                await _use(controller, segments, clock, name)
            for name in (ILL, WELL):
                await _leave(controller, segments, clock, name, left)
            for name in (ILL, WELL):
                await _leave_at_last(controller, clock, name, left)
            controller._ctx.audit._waiting.clear()  # as if it died: a close appends what waits
        there = {key.split(b"/")[0].decode() for key in segments.tables[keys.TABLE].entries}
        assert there - {"number", "point"} == set(KINDS)
        left.due = {key for key in segments.tables[keys.TABLE].entries if key.startswith(retention_keys.graces(WELL))}
        damaged = _damage(segments, kind, how)
        assert damaged
        clock.ms += 60_000
        caplog.clear()
        async with opened(segments, clock) as controller:
            await controller.sweep()
            for _ in range(4):
                # After the first time nothing is new, and nothing is reported again.
                clock.ms += 60_000
                _write(segments, WELL, 10)
                await controller.run_retention_cycles()
                await controller._loop.turn()
                await controller.sweep()
                await controller.drain_audit()
            await _check_well(controller, segments, left)
        reported = [
            record.key for record in caplog.records if record.msg.startswith("a metadata record cannot be read")
        ]
        assert len(reported) == len(set(reported)), "a record is reported once"
        assert set(reported) <= {key.decode() for key in damaged}

    with caplog.at_level(logging.ERROR):
        asyncio.run(work())


def test_unreadable_records_are_counted_until_readable_in_bounded_memory() -> None:
    counters = Counters()
    aside = SetAside(counters)
    bad = TableEntry(key=b"txn/s/t/1", value=b"rot", version=1)
    for _ in range(3):
        assert aside.read(bad, ErasureMarkRecord) is None
    assert counters.gauges["unreadable_records"] == 1
    assert aside.read(TableEntry(key=bad.key, value=ErasureMarkRecord().encode(), version=2), ErasureMarkRecord)
    assert counters.gauges["unreadable_records"] == 0
    for number in range(KNOWN_MAX + 10):
        aside.read(TableEntry(key=b"%d" % number, value=b"", version=1), ErasureMarkRecord)
    assert counters.gauges["unreadable_records"] == KNOWN_MAX


def test_an_outcome_under_a_key_that_names_no_transaction_stops_no_sweep() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock, QUIET) as controller:
            for place in ("done-at/s/t/zz/none", "queue/s/t/no-place", "txn/s/t/none"):
                table = segments.tables[keys.TABLE]
                table.position += 1
                table.entries[place.encode()] = (b'{"v":1}', table.position)
            await controller.sweep()

    asyncio.run(work())


@pytest.mark.parametrize("key", [b"txn/\xff/x/1", b"txn/", b"txn/s/t", b"txn/s/t/not-hex"])
def test_an_invalid_key_stops_no_sweep(key: bytes) -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock, QUIET) as controller:
            for prefix in (b"work/", b"queue/", b"done-at/", b"grace/", b"quota/", b"stream/", b"policy/", b"txn/"):
                table = segments.tables[keys.TABLE]
                table.position += 1
                table.entries[prefix + key[4:]] = (b'{"v":1}', table.position)
            await controller.sweep()
            await controller.run_retention_cycles()
            await controller._loop.turn()
        async with opened(segments, clock, QUIET):
            pass

    asyncio.run(work())
