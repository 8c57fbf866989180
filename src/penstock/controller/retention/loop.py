"""When retention looks at a stream: after a change, or when a rule becomes due. It never scans all streams without a
reason.

A first pass, a sweep, looks at every stream with a policy. Later cycles look only at streams that were written to or
sealed, whose subscribers, policy or holds changed, whose append limit was reached, or whose time has come. The cost of
a cycle grows with the changes, not with the number of streams.
Source: docs/design/0012-retention-clock.md, "The loop".
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from penstock.controller import keys, retention_keys
from penstock.controller.buckets import Buckets
from penstock.controller.context import Context
from penstock.controller.grace.kept import release_due
from penstock.controller.metadata import PAGE
from penstock.controller.retention.cycle import RetentionCycle
from penstock.controller.retention.due_times import DueTimes
from penstock.controller.retention.points import Points
from penstock.controller.retention.policies import load_levels
from penstock.controller.tasks import each
from penstock.core.streams.buckets import bucket_of
from penstock.model.answers.plan import RetentionRun
from penstock.model.errors import (
    InvalidNameError,
    PenstockError,
    ScopeNotFoundError,
    StreamNotFoundError,
    UnsupportedError,
)
from penstock.model.names import SYSTEM_SCOPE, StreamName, parse_segment_name
from penstock.model.retention import EffectivePolicy

log = logging.getLogger(__name__)

CYCLES_AT_ONCE = 8
"""Streams looked at in parallel: enough to share syncs, few enough that appends do not wait for retention."""

WAITING_MAX = 100_000
"""Streams remembered as dirty. If there are more, all streams are looked at."""

DUE_MAX = 400_000
"""Streams with a due time that are remembered, at about 300 bytes each. If there are more, all are looked at."""

SWEEP_AT_ONCE = 64
"""Streams that a sweep looks at between two pauses."""

_FAILED_MS = 60_000


class _Pace:
    """Pauses between steps, each ``rest`` times as long as the step before; none after the last."""

    def __init__(self, rest: float) -> None:
        self._rest = rest
        self._owed_s = 0.0

    @asynccontextmanager
    async def step(self) -> AsyncIterator[None]:
        if self._owed_s:
            await asyncio.sleep(self._owed_s)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        yield
        self._owed_s = self._rest * (loop.time() - began_s)


class RetentionLoop:
    """``context.Attention``. Its ``run_*`` methods run in tasks of the controller."""

    def __init__(self, ctx: Context, cycle: RetentionCycle, buckets: Buckets) -> None:
        self._ctx = ctx
        self._cycle = cycle
        self._buckets = buckets
        self._points = Points(ctx)
        self._dirty: dict[StreamName, None] = {}
        self._scopes: dict[str | None, None] = {}
        self._first = True
        self._due = DueTimes(limit=DUE_MAX)
        self._kept = DueTimes(limit=DUE_MAX)
        self._mark = 0
        self._wake = asyncio.Event()
        self._sweep = asyncio.Event()
        self._at_limit: dict[StreamName, float] = {}
        self._recorded = False

    # --- reported changes -----------------------------------------------------------------------------------------

    def dirty(self, name: StreamName) -> None:
        """Look at the stream after ``retention_pause_ms``. A burst of calls causes one look."""
        if self._ctx.settings.retention_cycle_ms is None:
            return
        self._remember(name)
        self._wake.set()

    def _remember(self, name: StreamName) -> None:
        if len(self._dirty) >= WAITING_MAX and name not in self._dirty:
            self._scopes[None] = None
        else:
            self._dirty[name] = None

    def dirty_all(self, scope: str | None) -> None:
        """Look at all streams of the scope, or (None) of the store, after ``retention_pause_ms``."""
        self._scopes[scope] = None
        self._sweep.set()

    def due(self, name: StreamName, at_ms: int | None) -> None:
        """Look at the stream at that time of the retention clock, or earlier if it changes."""
        self._due.set(name, at_ms)

    def kept(self, name: StreamName) -> None:
        """Truncated bytes of the stream are kept: the next look finds out until when.

        It is not marked dirty. Otherwise each truncation of a stream that is appended to would cause the next one.
        """
        self._kept.set(name, 0)

    # --- background runs -------------------------------------------------------------------------------------------

    async def run_cycles(self) -> None:
        """Look at changed and due streams, forever."""
        pause_ms = self._ctx.settings.retention_cycle_ms
        telemetry = self._ctx.telemetry
        if pause_ms is not None:
            self._promise(pause_ms)
        while pause_ms is not None:
            await asyncio.sleep(pause_ms / 1000)
            began_s = telemetry.steady_s()
            try:
                await self.turn(sweep=False)
                telemetry.observe("retention_cycle_seconds", telemetry.steady_s() - began_s)
                telemetry.gauge("retention_cycle_ended_time_seconds", self._ctx.clock.now_ms() / 1000)
                self._promise(pause_ms)
            except PenstockError as error:
                log.warning("retention cycle was cut short", extra={"error": str(error)})
            except Exception:
                log.exception("retention cycle ended early because of an unexpected error")

    def _promise(self, pause_ms: int) -> None:
        """Show when the next cycle is due, so that an alert also works for one that never ends."""
        self._ctx.telemetry.gauge("retention_cycle_due_time_seconds", (self._ctx.clock.now_ms() + pause_ms) / 1000)

    async def run_dirty(self) -> None:
        """Look at streams soon after they were marked dirty."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._ctx.settings.retention_pause_ms / 1000)
            self._wake.clear()
            # Dirty streams of other controllers' buckets: those learn of the change from the store, or in a cycle.
            names, self._dirty = list(self._dirty), {}
            await self._look_at(names)

    async def run_sweeps(self) -> None:
        """Perform requested sweeps of a scope or of all streams. Changed and due streams do not wait for a sweep. A
        sweep uses only a third of the time and leaves the rest to writers."""
        pause_s = self._ctx.settings.retention_pause_ms / 1000
        while True:
            await self._sweep.wait()
            await asyncio.sleep(pause_s)
            self._sweep.clear()
            try:
                await self._look_at_scopes(rest=2.0)
            except PenstockError as error:
                log.warning("streams could not be listed; they are looked at later", extra={"error": str(error)})
                await asyncio.sleep(max(pause_s, 1.0))
                self._sweep.set()

    async def run_limits(self) -> None:
        """Look at once at streams whose writers reach a limit: the data that fills it may be removable by now."""
        loop = asyncio.get_running_loop()
        pause_s = self._ctx.settings.retention_pause_ms / 1000
        while True:
            try:
                reached = await self._ctx.segments.limits_reached()
            except UnsupportedError:
                return
            except PenstockError as error:
                log.warning("limits cannot be watched", extra={"error": str(error)})
                await asyncio.sleep(max(pause_s, 1.0))
                continue
            except Exception:
                log.exception("limits cannot be watched because of an unexpected error")
                await asyncio.sleep(max(pause_s, 1.0))
                continue
            now_s = loop.time()
            self._at_limit = {name: at_s for name, at_s in self._at_limit.items() if now_s - at_s < pause_s}
            for name in map(StreamName.parse, reached):
                if name in self._at_limit:
                    # Just looked at: writers that retry must not keep the planner busy.
                    self.dirty(name)
                elif self._buckets.owns(name):
                    self._at_limit[name] = now_s
                    await self._look(name)

    async def turn(self, *, sweep: bool = True) -> int:
        """Run one cycle: changed, due and requested streams. Returns how many.

        Without ``sweep``, sweeps of whole scopes are left to ``run_sweeps``.
        """
        ctx = self._ctx
        await self._note_changes()
        if self._first:
            self._scopes[None] = None
            self._first = False
        if self._due.overflowed or self._kept.overflowed:
            self._due.clear()
            self._kept.clear()
            self._scopes[None] = None
        if None in self._scopes:
            # All are looked at, those of new buckets among them.
            self._buckets.taken()
        count = 0
        if self._scopes and sweep:
            count = await self._look_at_scopes()
        elif self._scopes:
            self._sweep.set()
        count += await self._look_at_taken()
        now_ms = ctx.retention_clock.now_ms()
        names, self._dirty = self._dirty, {}
        names |= dict.fromkeys(self._due.pop(now_ms))
        for name in self._kept.pop(now_ms):
            self._kept.set(name, now_ms)
            names[name] = None
        count += await self._look_at(names)
        await self._end_turn()
        ctx.telemetry.gauge("retention_streams", count)
        return count

    async def _end_turn(self) -> None:
        """Do what is needed once for each cycle."""
        await self._points.flush()
        if self._recorded:
            self._recorded = False
            await self._ctx.retention_clock.record()
        else:
            await self._ctx.retention_clock.record_moves()
        if self._ctx.audit.waiting:
            self._ctx.audit.soon()
        due = [at_ms for at_ms in (self._due.first(), self._kept.first()) if at_ms is not None]
        ahead_ms = min(due) - self._ctx.retention_clock.now_ms() if due else math.inf
        self._ctx.telemetry.gauge("retention_next_due_time_seconds", (self._ctx.clock.now_ms() + ahead_ms) / 1000)

    async def run_once(self) -> int:
        """Look at every stream with a policy, now; returns how many of them are not internal."""
        count = 0
        async for names in self._pages(b"policy/", all_of=None):
            await self._look_at(names)
            count += sum(not name.is_internal for name in names)
        kept = await self._with_kept_bytes()
        self._kept_again(kept)
        await self._look_at(kept)
        await self._end_turn()
        return count

    async def run_stream(self, name: StreamName) -> RetentionRun:
        """Run a full cycle of one stream now; returns the decision. Raises as ``RetentionCycle.run``."""
        decision = await self._cycle.run(name)
        self._kept.set(name, await release_due(self._ctx, name))
        return decision

    # --- choosing streams ----------------------------------------------------------------------------------------

    async def _note_changes(self) -> None:
        """Mark streams as dirty that have grown or were sealed since the last cycle."""
        try:
            changes = await self._ctx.segments.changed_segments(self._mark)
        except UnsupportedError:
            self._scopes[None] = None
            return
        if not changes.complete:
            self._mark = changes.mark
            self._scopes[None] = None
            return
        seen = dict.fromkeys(name for name in map(_stream_of, changes.names) if name is not None)
        for name in seen:
            if name not in self._dirty and self._buckets.owns(name) and await self._concerns(name):
                self._remember(name)
        # Last: if this is interrupted, the next turn gets the same changes again.
        self._mark = changes.mark

    async def _concerns(self, name: StreamName) -> bool:
        """Whether any rule may affect the stream. True if a read fails; the cycle then reports the error."""
        try:
            view = await self._ctx.streams.find(name)
            return view is not None and acts((await load_levels(self._ctx, view)).effective)
        except PenstockError:
            return True

    async def _look_at_scopes(self, *, rest: float = 0.0) -> int:
        """Look at all streams of the dirty scopes; None: at all streams with a policy.

        ``rest``: length of the pause after each group, as a multiple of the time it took. A scope that fails stays
        dirty and does not stop the others. The first PenstockError is raised after the last scope; a defect is logged
        and left to the next cycle.
        """
        scopes, self._scopes = self._scopes, {}
        pace, count = _Pace(rest), 0
        failed: PenstockError | None = None
        while scopes:
            scope = next(iter(scopes))
            try:
                count += await self._look_at_scope(scope, pace)
            except PenstockError as error:
                self._scopes[scope] = None
                failed = failed or error
            except Exception:
                log.exception("streams could not be listed because of an unexpected error", extra={"scope": scope})
                self._scopes[scope] = None
            except BaseException:
                self._scopes |= scopes
                raise
            del scopes[scope]
        if failed is not None:
            raise failed
        return count

    async def _look_at_scope(self, scope: str | None, pace: _Pace) -> int:
        count = 0
        if scope is None:
            self._kept_again(await self._with_kept_bytes())
            # Streams whose writers are still limited although no policy applies any more.
            async for names in self._listed(b"quota/", ""):
                count += await self._look_at_some(names, pace)
        prefix = b"policy/" if scope is None else b"stream/"
        async for names in self._pages(prefix, all_of=scope):
            count += await self._look_at_some(names, pace)
        return count

    async def _look_at_some(self, names: list[StreamName], pace: _Pace) -> int:
        count = 0
        for start in range(0, len(names), SWEEP_AT_ONCE):
            async with pace.step():
                count += await self._look_at(names[start : start + SWEEP_AT_ONCE])
        return count

    async def _look_at_taken(self) -> int:
        """Look at the streams of buckets that were taken from another controller."""
        taken = self._buckets.taken()
        if not taken:
            return 0
        wanted, count = set(taken), 0
        try:
            async for names in self._pages(b"policy/", all_of=None):
                count += await self._look_at(
                    name for name in names if bucket_of(str(name), self._buckets.count) in wanted
                )
            self._kept_again(await self._with_kept_bytes())
        except BaseException:
            # The buckets are reported only once, so the next turn checks all streams.
            self._scopes[None] = None
            raise
        return count

    def _kept_again(self, names: Iterable[StreamName]) -> None:
        for name in names:
            self._kept.set(name, 0)

    async def _with_kept_bytes(self) -> list[StreamName]:
        """Streams with grace records."""
        prefix = retention_keys.GRACES
        found: dict[StreamName, None] = {}
        async for entry in self._ctx.metadata.scan_all(prefix):
            name = self._ctx.set_aside.stream(entry, prefix, last=1)
            if name is not None:
                found[name] = None
        return list(found)

    async def _pages(self, prefix: bytes, *, all_of: str | None) -> AsyncIterator[list[StreamName]]:
        """Streams, a page at a time: all of one scope, or those with a policy in any scope."""
        if all_of is not None:
            async for names in self._listed(prefix, f"{all_of}/"):
                yield names
            return
        server, *_ = await self._ctx.metadata.entries([keys.SERVER_POLICY])
        if server.version >= 0:
            async for names in self._listed(b"stream/", ""):
                yield names
            return
        scopes = [
            entry.key[len(keys.SCOPE_POLICIES) :].decode("utf-8", "replace")
            async for entry in self._ctx.metadata.scan_all(keys.SCOPE_POLICIES)
        ]
        for scope in scopes:
            async for names in self._listed(b"stream/", f"{scope}/"):
                yield names
        covered = set(scopes)
        async for names in self._listed(prefix, ""):
            yield [name for name in names if name.scope not in covered]

    async def _listed(self, prefix: bytes, within: str) -> AsyncIterator[list[StreamName]]:
        after: bytes | None = None
        wanted = prefix + within.encode()
        while page := await self._ctx.metadata.scan(wanted, after=after):
            after = page[-1].key
            found = (self._ctx.set_aside.stream(entry, prefix) for entry in page)
            names = [name for name in found if name is not None]
            # Only its own policy applies to an internal stream: a listing of all streams skips the others.
            yield [name for name in names if not name.is_internal or prefix == b"policy/" or _is_system(name)]
            if len(page) < PAGE:
                return

    # --- one look ------------------------------------------------------------------------------------------------

    async def _look_at(self, names: Iterable[StreamName]) -> int:
        # Without a running loop, cycles run on request only, and look at every requested stream.
        by_hand = self._ctx.settings.retention_cycle_ms is None
        owned = [name for name in names if by_hand or self._buckets.owns(name)]
        for name in owned:
            self._dirty.pop(name, None)
        await each(owned, self._look, limit=CYCLES_AT_ONCE)
        return len(owned)

    async def _look(self, name: StreamName) -> None:
        """Look at one stream. A failure does not stop the others; the stream is looked at again."""
        try:
            decision = await self._cycle.run(name, frequency_ms=self._ctx.settings.tail_record_ms)
            if decision.record is not None:
                self._recorded = True
                await self._points.note(name, time_ms=decision.record.time_ms, size_bytes=decision.record.size_bytes)
            if self._kept.pop_one(name) or decision.truncate is not None:
                self._kept.set(name, await release_due(self._ctx, name))
        except (StreamNotFoundError, ScopeNotFoundError):
            # Deleted since it was listed.
            self._due.set(name, None)
            self._kept.set(name, None)
        except Exception as error:
            shown = None if isinstance(error, PenstockError) else error
            log.warning(
                "retention of a stream failed", extra={"stream": str(name), "error": str(error)}, exc_info=shown
            )
            self._ctx.telemetry.add("retention_failures")
            self._due.set(name, self._ctx.retention_clock.now_ms() + _FAILED_MS)
            self._kept.set(name, self._ctx.retention_clock.now_ms() + _FAILED_MS)


def acts(policy: EffectivePolicy) -> bool:
    """Whether any rule of the policy may ever do anything."""
    return (
        policy.truncates
        or policy.limits_backlog
        or any(limit is not None for limit in (policy.ttl_ms, policy.subscriber_idle_ms, policy.stream_idle_ms))
    )


def _is_system(name: StreamName) -> bool:
    return name.scope == SYSTEM_SCOPE


def _stream_of(segment: str) -> StreamName | None:
    """The stream of a changed segment; None if it is neither a user's stream nor the audit stream."""
    try:
        name, _ = parse_segment_name(segment)
    except InvalidNameError:
        # A table, or a transaction's segment, which is not yet part of its stream.
        return None
    return None if name.is_internal and not _is_system(name) else name
