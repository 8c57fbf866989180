"""Decisions that write audit entries, and stores whose appends or tables fail."""

import random

from memory_segments import MemorySegments

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.events import split_events
from penstock.model.errors import StorageFullError, ThrottledError, UnavailableError
from penstock.model.names import AUDIT_STREAM, segment_name
from penstock.model.segments import make_segment_id
from penstock.ports.data.tables import TableRemoval

SEGMENT = segment_name(AUDIT_STREAM, make_segment_id(0, 0))


async def decide(controller, number):
    """A decision of its own: the audit entry and a counter in one step, as every part of the controller does it."""
    ctx = controller._ctx
    entry = AuditEntry(kind=AuditKind.POLICY, target="s/t", fields={"after": number})
    await ctx.metadata.put(*ctx.audit.puts([entry]))
    ctx.audit.soon()


def stored(segments):
    """The events of the audit stream as they are stored."""
    segment = segments.segments[SEGMENT]
    return split_events(bytes(segment.data[segment.start :]))


def removal(key):
    return TableRemoval(key=key)


def numbers(entries):
    return [entry["after"] for entry in entries if entry["kind"] == "policy"]


class FullSegments(MemorySegments):
    """A disk that takes decisions, from its reserve, but no appends."""

    full = False

    async def append(self, request):
        if self.full:
            raise StorageFullError("disk is full")
        return await super().append(request)


class FlakySegments(FullSegments):
    """Some updates of the table fail: before any effect, or with an answer that leaves the outcome open."""

    def __init__(self, seed):
        super().__init__()
        self.rng, self.failing = random.Random(seed), False

    async def table_update(self, name, puts):
        fails = self.rng.random() if self.failing and any(put.key.startswith(b"audit") for put in puts) else 1.0
        if fails < 0.4:
            raise ThrottledError("store is behind", resource="metadata", limit=1)
        if fails < 0.5:
            raise UnavailableError("connection lost before the call")
        answer = await super().table_update(name, puts)
        if fails < 0.6:
            raise UnavailableError("connection lost after the call")
        return answer
