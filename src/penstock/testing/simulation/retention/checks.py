"""Periodic checks in a long run: data as readers find it, the audit stream, plans, and the reclaim report."""

from __future__ import annotations

from ast import literal_eval
from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from penstock.client.retry import RETRYABLE
from penstock.codec.audit import decode_entry
from penstock.codec.events import split_events
from penstock.controller.groups.moved_subscribers import UNDO
from penstock.model.errors import SegmentNotFoundError, TruncatedError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId, make_segment_id
from penstock.testing.simulation.retention.actions import Users

AUDIT = StreamName("_system", "audit")
_READ = 1 << 20  # bytes of one read
_CHAINED = ("truncate", "undo")
_TIMES_CLOSE_MS = 5000


async def read_segment(users: Users, name: str, start: int, end: int) -> bytes:
    """The bytes from start to end. Raises TruncatedError, SegmentNotFoundError."""
    found, offset = b"", start
    while offset < end:
        read = partial(users.cluster.local.read, name, offset, min(_READ, end - offset), wait=False)
        data = b"".join(bytes(view) for view in (await users.cluster.insist(read)).parts)
        if not data:
            break
        found += data
        offset += len(data)
    return found


async def check_readable(users: Users, name: StreamName) -> None:
    """Every event from the head on can be read in full. If the head moves meanwhile, the check starts again."""
    model = users.models[name]
    for _ in range(5):
        head = await users.observe(name)
        missing = await _first_missing(users, name, head)
        if missing is None:
            users.count("streams read")
            return
        if dict(await users.observe(name)) == dict(head):
            users.history.violation("lost", f"{name} {missing} behind the head {dict(head)}")
            return
    users.history.note(f"{name} moves too fast to be read, {model.moves} moves")


async def _first_missing(users: Users, name: StreamName, head: Mapping[SegmentId, int]) -> str | None:
    by_segment: dict[SegmentId, list[Any]] = {}
    model = users.models[name]
    for event in model.left(head):
        by_segment.setdefault(event.segment, []).append(event)
    for segment, events in sorted(by_segment.items()):
        start = max(head.get(segment, 0), 0)
        end = max(event.end for event in events)
        try:
            data = await read_segment(users, segment_name(name, segment), start, end)
        except (TruncatedError, SegmentNotFoundError) as error:
            return f"{segment}: {error}"
        for event in events:
            if data[event.start - start : event.end - start] != event.data:
                return f"event {event.number} at {event.start} of {segment}"
    return None


async def check_plan(users: Users, name: StreamName) -> None:
    """The next cycle does what was planned, if only a moment lies between."""
    controller = users.cluster.controller
    try:
        before = await controller.cuts.tail(name)
        head = dict(await users.observe(name))
        planned = await controller.retention.plan(name)
        done = await controller.retention.run(name)
        after = await controller.cuts.tail(name)
    except RETRYABLE:
        return
    moved = dict(await users.observe(name)) != head
    if before.positions != after.positions:
        return
    if moved and done.truncate is None:
        return  # A cycle of the control loop came between the two.
    for field in ("truncate", "rule", "expire", "evict", "drop"):
        wanted, found = getattr(planned, field), getattr(done, field)
        if wanted != found and not await _due_meanwhile(users, name, planned.next_due_ms):
            users.history.violation("plan differs from the cycle", f"{name} {field}: {wanted} planned, {found} done")
    users.count("plans")


async def _due_meanwhile(users: Users, name: StreamName, due_ms: int | None) -> bool:
    """Whether the passing of time alone may have changed the decision between the two."""
    if due_ms is None:
        return False
    now_ms = (await users.cluster.insist(partial(users.cluster.controller.retention.forecast, name))).at_ms
    return bool(due_ms <= now_ms + _TIMES_CLOSE_MS)


async def check_reclaim(users: Users, name: StreamName) -> None:
    """The report counts each byte that the store counts for the stream exactly once."""
    model, controller, local = users.models[name], users.cluster.controller, users.cluster.local
    names = [segment_name(name, segment) for segment in sorted(model.ranges)]
    try:
        before = await local.spaces(names)
        report = await controller.retention.reclaim(name)
        after = await local.spaces(names)
    except RETRYABLE:
        return
    pending = sum(item.bytes for item in report.pending)
    if report.disk_bytes != report.tiered_bytes + pending:
        users.history.violation("reclaim does not add up", f"{name} {report}")
    disk = sum(space.tiered_bytes + space.pending_free_bytes for space in before.values())
    if dict(before) == dict(after) and report.disk_bytes != disk:
        text = f"{name} {report.disk_bytes} of {disk}, {sorted(before.values(), key=repr)}"
        users.history.violation("reclaim is not what the store counts", text)
    users.count("reclaim reports")


async def check_audit(users: Users, *, complete: bool) -> None:
    """The audit stream reports every move of every head exactly once, in order. ``complete``: up to the present
    head."""
    entries = await read_audit(users)
    if entries is None:
        return
    heads = {name: await users.observe(name) for name in users.models} if complete else {}
    again = await read_audit(users) if complete else entries
    if again is None or len(again) != len(entries):
        return
    for name in users.models:
        at: dict[SegmentId, int] | None = None
        for entry in entries:
            if entry["target"] != str(name) or entry["kind"] not in _CHAINED:
                continue
            if at is not None and _cut(entry["before"]) != at:
                users.history.violation("audit chain broken", f"{name} at {at}, then {entry}")
            at = _cut(entry["after"]) or None
        if complete and at is not None and dict(heads[name]) != at:
            users.history.violation("audit lacks the last move", f"{name} at {dict(heads[name])}, reported {at}")
        if complete and at is None and users.models[name].moves and not any(e["kind"] == "undo" for e in entries):
            users.history.violation("audit reports nothing", f"{name} at {dict(heads[name])}")
    _check_forced(users, entries)
    users.count("audits")


def _check_forced(users: Users, entries: list[dict[str, Any]]) -> None:
    """Every recorded forced advance is reported once; after an undo has moved the subscriber back, it may be
    repeated."""
    reported: Counter[str] = Counter()
    moved_back: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        for hurt in entry.get("subscribers", ()):
            who = (entry["target"], hurt["name"])
            if entry["kind"] in ("expire", "evict"):
                reported[repr((*who, sorted(_cut(hurt["from"]).items()), sorted(_cut(hurt["to"]).items())))] += 1
            elif entry["kind"] == "move" and entry["rule"] == UNDO:
                moved_back[who] += 1
    for name, forced in users.forced.items():
        for item in forced:
            key = repr((str(name), item.subscriber, sorted(item.start.items()), sorted(item.end.items())))
            if not reported[key]:
                users.history.violation("forced advance is not in the audit", key)
    for key, times in reported.items():
        if times > 1 + moved_back[literal_eval(key)[:2]]:
            users.history.violation("forced advance is reported twice", f"{times} times {key}")


async def read_audit(users: Users) -> list[dict[str, Any]] | None:
    """All entries, oldest first; None if the stream does not exist yet or is unavailable now."""
    name = segment_name(AUDIT, make_segment_id(0, 0))
    try:
        node = users.cluster.serving()
        await node.call(node.controller.drain_audit)
        info = await users.cluster.local.info(name)
        data = await read_segment(users, name, info.start_offset, info.length)
    except (SegmentNotFoundError, *RETRYABLE):
        return None
    return [decode_entry(event) for event in split_events(data)]


async def check_explained(users: Users, name: StreamName) -> None:
    """Every byte from head to tail has exactly one holder, and each range begins where the one before has ended."""
    controller = users.cluster.controller
    try:
        before = await controller.streams.describe(name)
        ranges = (await controller.retention.explain(name)).ranges
        after = await controller.streams.describe(name)
    except RETRYABLE:
        return
    held = sum(item.bytes for item in ranges)
    if (before.head, before.tail) == (after.head, after.tail) and held != before.size_bytes:
        users.history.violation("explanation does not add up", f"{name} {before.size_bytes} bytes, {ranges}")
    for one, other in pairwise(ranges):
        if one.end != other.start or one.bytes <= 0:
            users.history.violation("explanation has a gap", f"{name} {ranges}")
    users.count("explanations")


def _cut(fields: Mapping[str, int]) -> dict[SegmentId, int]:
    return {SegmentId(int(segment)): offset for segment, offset in fields.items()}
