"""Subscribers that rules moved or dropped: recorded for each truncation that can be undone, and moved back by an undo.

A row, ``moved/<stream>/<time>/<subscriber>``, holds the subscriber's record as it was before a rule first touched it after
the truncation of that time (0: before any). Rows are deleted by the undo that uses them, and with the bytes that a grace
period has kept. Source: docs/design/0012-retention-clock.md, "Grace".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.readers import GroupRecord, GroupState, SubscriberRecord
from penstock.codec.control.record import Positions, dump_positions
from penstock.codec.control.truncations import GraceState, MovedRecord
from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.grace.records import load_grace
from penstock.controller.metadata import Stored, changing, stored
from penstock.controller.stream_view import StreamView
from penstock.core.cuts.order import at_or_after, head_of, size_till, upper_bound
from penstock.core.planner_json.stream import encode_cut
from penstock.core.streams.history import StreamHistory
from penstock.model.answers.undo import RestoredSubscriber
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.ports.data.tables import TablePut

UNDO = "undo"
"""Rule that the audit stream names for subscribers that an undo moves back."""

_BACK_AT_ONCE = 40  # subscribers moved in one step, which also writes their audit entry


async def remember_puts(
    ctx: Context, name: StreamName, before: Mapping[str, SubscriberRecord], dropped: Sequence[str], grace_ms: int
) -> list[TablePut]:
    """Puts that record subscribers before a rule moves or drops them; empty if no undo is possible."""
    grace = (await load_grace(ctx.metadata, name)).values
    if not grace and grace_ms <= 0:
        return []
    at_ms = grace[-1].at_ms if grace else 0
    wanted = [retention_keys.moved(name, at_ms, group) for group in before]
    puts: list[TablePut] = []
    for (group, record), entry in zip(before.items(), await ctx.metadata.entries(wanted), strict=True):
        found: Stored[MovedRecord] = stored(entry, MovedRecord)
        known = found.value or MovedRecord(before=record)
        changed = replace(known, dropped=known.dropped or group in dropped)
        if changed != found.value:
            puts.append(found.put(changed))
    return puts


async def forget_moves(ctx: Context, name: StreamName, before_ms: int) -> None:
    """Delete the rows of moves for truncations before that time: their bytes are being freed for good."""
    prefix = retention_keys.moves(name)
    rows = [entry.key async for entry in ctx.metadata.scan_all(prefix)]
    await ctx.metadata.remove_keys([key for key in rows if _time_of(prefix, key) < before_ms])


class Restoring:
    """Moves subscribers back to their positions before rules took the data of one truncation from them."""

    def __init__(self, ctx: Context, view: StreamView, history: StreamHistory, undone_at_ms: int) -> None:
        self._ctx, self._view, self._history = ctx, view, history
        self._undone_at_ms = undone_at_ms
        self._keys: list[bytes] = []

    async def restore(self) -> list[RestoredSubscriber]:
        """Repeatable. The rows stay until ``finish``, so that a crash before the end of the undo loses none."""
        ctx, name = self._ctx, self._view.name
        rows = await self._rows()
        groups, done = sorted(rows), []
        for start in range(0, len(groups), _BACK_AT_ONCE):
            part = {group: rows[group] for group in groups[start : start + _BACK_AT_ONCE]}
            done += await changing(lambda part=part: self._put_back(part))  # type: ignore[misc]
        if done:
            ctx.audit.soon()
            ctx.attention.dirty(name)
        return done

    async def finish(self) -> None:
        """Delete the rows that were used."""
        await self._ctx.metadata.remove_keys(self._keys)

    async def _rows(self) -> dict[str, MovedRecord]:
        """For each subscriber, its record before its first move after the truncation that precedes this one."""
        name, prefix = self._view.name, retention_keys.moves(self._view.name)
        grace = (await load_grace(self._ctx.metadata, name)).values
        earlier = [item.at_ms for item in grace if item.at_ms < self._undone_at_ms]
        left = [item.at_ms for item in grace if item.at_ms in earlier and item.state is not GraceState.UNDONE]
        since_ms = max(left, default=0)
        found: dict[str, MovedRecord] = {}
        async for entry in self._ctx.metadata.scan_all(prefix):
            if _time_of(prefix, entry.key) < since_ms:
                continue
            row = self._ctx.set_aside.read(entry, MovedRecord)
            if row is None:
                continue
            self._keys.append(entry.key)
            group = entry.key[len(prefix) :].decode().partition("/")[2]
            known = found.get(group, row)
            found[group] = replace(known, dropped=known.dropped or row.dropped)
        return found

    async def _put_back(self, rows: Mapping[str, MovedRecord]) -> list[RestoredSubscriber]:
        ctx, name = self._ctx, self._view.name
        puts: list[TablePut] = []
        done: list[RestoredSubscriber] = []
        hurt: list[dict[str, Any]] = []
        for group, row in rows.items():
            found = await ctx.metadata.get(keys.subscriber(name, group), SubscriberRecord)
            record, reason = await self._target(group, row, found.value)
            if record is None:
                at = None if found.value is None else found.value.cut
                done.append(_outcome(group, reason, at, row.before.cut))
            else:
                done.append(_outcome(group, "", record.cut, row.before.cut))
                if record != found.value:
                    puts.append(found.put(record))
                    hurt.append(self._moved(group, found.value, record))
        if puts:
            size = sum(item["bytes"] for item in hurt)
            entry = AuditEntry(
                kind=AuditKind.MOVE,
                target=str(name),
                fields={"rule": UNDO, "bytes": size, "events": None, "subscribers": hurt},
            )
            await ctx.metadata.put(*puts, *ctx.audit.puts([entry]))
        return done

    def _moved(self, group: str, was: SubscriberRecord | None, now: SubscriberRecord) -> dict[str, Any]:
        first = head_of(self._history)
        start = first if was is None or was.cut is None else was.cut
        end = now.cut or first
        return {
            "name": group,
            "from": dump_positions(start),
            "to": dump_positions(end),
            "bytes": size_till(self._history, end) - size_till(self._history, start),
            "events": None,
        }

    async def _target(
        self, group: str, row: MovedRecord, now: SubscriberRecord | None
    ) -> tuple[SubscriberRecord | None, str]:
        """The record to put back, or None and why it is left as it is."""
        before = row.before
        if before.incarnation != self._view.record.incarnation:
            return None, "it subscribed to an earlier stream of this name"
        if now is None or now.dropped:
            return await self._subscribed_again(group, row)
        if now.group_id != before.group_id:
            return None, "another reader group has its name now"
        wanted = before.cut
        if wanted is None or now.cut is None or at_or_after(self._history, wanted, now.cut):
            return now, ""
        if now.own is None:
            return None, "it has acknowledged further itself, or was moved, since"
        said = now.own
        target = wanted if at_or_after(self._history, wanted, said) else upper_bound(self._history, [wanted, said])
        own = None if target == said else said
        return replace(now, cut=dict(target), own=own), ""

    async def _subscribed_again(self, group: str, row: MovedRecord) -> tuple[SubscriberRecord | None, str]:
        if not row.dropped:
            return None, "its subscription was removed since"
        of = (await self._ctx.metadata.get(keys.group(group), GroupRecord)).value
        if (reason := why_left(of, row.before, self._view.name)) or of is None:
            return None, reason
        # Idleness counts from here: a rule that drops silent subscribers would drop this one at once.
        return replace(row.before, generation=of.generation, updated_ms=self._ctx.clock.now_ms(), dropped=False), ""


def _outcome(group: str, reason: str, at: Positions | None, wanted: Positions | None) -> RestoredSubscriber:
    """``reason``: why it was not moved back; empty: it was."""
    return RestoredSubscriber(
        name=group, restored=not reason, reason=reason, at=encode_cut(at), wanted=encode_cut(wanted)
    )


def why_left(of: GroupRecord | None, record: SubscriberRecord, name: StreamName) -> str:
    """Why a reader group no longer has this subscription to the stream; empty if it does. ``of``: the group of this
    name."""
    if of is None or of.state is GroupState.DELETING or of.id != record.group_id:
        return "its reader group was deleted since"
    if of.retention is ReaderGroupRetention.NONE or str(name) not in of.start_cuts:
        return "its reader group does not subscribe to the stream any more"
    return ""


def _time_of(prefix: bytes, key: bytes) -> int:
    return int(key[len(prefix) :].partition(b"/")[0], 16)
