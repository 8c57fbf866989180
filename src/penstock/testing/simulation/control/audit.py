"""Users who make decisions and check the audit stream: every decision once, and no gap without a lost entry."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from penstock.client.retry import RETRYABLE
from penstock.codec.audit import AuditKind, decode_entry
from penstock.codec.events import split_events
from penstock.controller.controller import Controller
from penstock.core.evidence.merkle import leaf_hash
from penstock.model.errors import ConflictError, StorageFullError
from penstock.model.names import AUDIT_STREAM, StreamName, segment_name
from penstock.model.retention import PolicyDocument, Retain
from penstock.model.segments import make_segment_id
from penstock.testing.simulation.actors import READ_BYTES, Env
from penstock.testing.simulation.control.actors import Seen, make_scope, make_stream
from penstock.testing.simulation.control.world import ControlCluster

_SCOPE = "decided"
_STREAMS = tuple(StreamName(_SCOPE, name) for name in ("one", "two", "three", "four"))
_SEGMENT = segment_name(AUDIT_STREAM, make_segment_id(0, 0))


async def decide(env: Env, seen: Seen, name: str) -> None:
    """Set policies of otherwise unused streams, each to a different number. Retry a change that fails."""
    await make_scope(env, _SCOPE)
    for stream in _STREAMS:
        await make_stream(env, stream)
    await asyncio.gather(*(_decide(env, seen, stream) for stream in _STREAMS))


async def _decide(env: Env, seen: Seen, stream: StreamName) -> None:
    rng = env.rng(f"decide/{stream}")
    number = 0
    while not env.stopping.is_set():
        number += 1
        document = PolicyDocument(retain=Retain(min_bytes=(1 << 40) + number, max_bytes=None))
        await env.insist(partial(_set, env, stream, document))
        seen.decisions[str(stream)] = number
        seen.count("decisions")
        await env.pause(rng)


async def _set(env: Env, stream: StreamName, document: PolicyDocument) -> None:
    while True:
        try:
            return await env.controller.policies.set(stream, document)
        except (ConflictError, StorageFullError) as error:
            # Retry at once: many attempts may fail before one decides anything.
            env.history.note(f"policy of {stream} failed: {error}")
            await asyncio.sleep(0.03)


async def check_audit(env: Env, seen: Seen, cluster: ControlCluster) -> None:
    """Called after the last fault: all decisions are there, in order, except those that had no room."""
    entries = await _entries(env)
    gaps = sum(entry["entries"] for entry in entries if entry["kind"] == AuditKind.GAP.value)
    seen.count("audits")
    if cluster.counted:
        env.history.violation("audit entry has no room", f"{cluster.counted} times, though few entries waited")
    for stream in map(str, _STREAMS):
        reported = [
            int(entry["after"]["retain"]["min_bytes"]) - (1 << 40)
            for entry in entries
            if entry["kind"] == AuditKind.POLICY.value and entry["target"] == stream
        ]
        lost = sorted(set(range(1, seen.decisions.get(stream, 0) + 1)) - set(reported))
        if len(lost) > gaps:
            env.history.violation(
                "decision is not in the audit", f"{stream} {lost[:5]} of {len(reported)}, {gaps} in gaps"
            )
        if reported != sorted(reported):
            env.history.violation("audit out of order", f"{stream} {reported[-20:]}")


def _check_log(env: Env, events: list[bytes]) -> None:
    """All entries form one log: each continues the one before."""
    last: bytes | None = None
    for number, event in enumerate(events):
        entry = decode_entry(event)
        previous = None if last is None else leaf_hash(last).hex()
        if (entry["n"], entry["previous"], "log" in entry) != (number, previous, last is None):
            env.history.violation("audit log is broken", f"entry {number} is {entry['n']} of {len(events)}")
            return
        last = event


async def _entries(env: Env) -> list[dict[str, Any]]:
    controller = cast("Controller", env.controller)
    await env.insist(controller.drain_audit)
    info = await env.insist(partial(env.cluster.local.info, _SEGMENT))
    data = b""
    while info.start_offset + len(data) < info.length:
        at = info.start_offset + len(data)
        try:
            data += b"".join((await env.cluster.local.read(_SEGMENT, at, READ_BYTES, wait=False)).parts)
        except RETRYABLE:
            await asyncio.sleep(0.1)
    events = split_events(data)
    _check_log(env, events)
    return [decode_entry(event) for event in events]
