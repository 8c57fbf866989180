"""Leases: who holds the chunks of which segments, and until when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from uuid import UUID

from penstock.codec.store import operations as codec
from penstock.codec.store import rows as records
from penstock.model.errors import DamagedRowError, InvalidArgumentError, PenstockError
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.ports.data.chunks import HOLDER_MAX_BYTES, Lease
from penstock.segmentstore.segment import Segment
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.state import ContainerState

_log = logging.getLogger(__name__)

ALL_SEGMENTS = 0
"""In an operation that ends a lease: on all segments. No segment has this uid."""

Key = tuple[int, int]
"""Id of the lease, and uid of the segment."""


@dataclass(slots=True, kw_only=True)
class HeldLease:
    """End of a lease by the wall clock and by the event loop, so that a clock jump frees nothing."""

    until_ms: int
    loop_until: float
    holder: str

    def encoded(self) -> bytes:
        return records.encode_lease(records.LeaseRecord(until_ms=self.until_ms, holder=self.holder))


class Leases:
    """The leases of one container.

    Each change by a call has one path. The leases in force change first. At the same instant their row joins the container's
    changes, and an operation is queued for the log. Callers then wait until the operation is durable. So a row may be ahead
    of the log, and replay repeats what it already has: an operation only extends a lease, or ends it. A merge needs no
    operation of its own, and the end of a lease by time is computed again.
    """

    def __init__(
        self,
        state: ContainerState,
        clock: Clock,
        settings: StoreSettings,
        ask_checkpoint: Callable[[], None],
        log: Callable[[Sequence[codec.Change], Callable[[object], None]], None],
    ) -> None:
        """``ask_checkpoint``: called when chunks may be freed. ``log``: queues operations, and calls back once they are
        durable, or with the error."""
        self._state = state
        self._clock = clock
        self._settings = settings
        self._ask_checkpoint = ask_checkpoint
        self._log = log
        self._held: dict[Key, HeldLease] = {}
        self._old: dict[Key, None] = {}
        self._segments_of: dict[int, int] = {}
        """How many segments each lease holds."""
        self._leases_on: dict[int, int] = {}
        """How many leases hold each segment."""
        self._gone: dict[int, str] = {}
        """Names of leased segments that were deleted or merged, by uid. Nothing else records the owner of chunks that a
        crash has orphaned."""
        self._done: dict[int, set[int]] = {}
        """The tasks under a lease that are done, in memory only. After a restart the lease ends by time."""

    async def recover(self) -> Sequence[bytes]:
        """Load the leases of earlier openings. Called before replay. Returns the keys of damaged rows. The end of those
        leases is unknown, so they hold for the longest time that any lease may."""
        state = self._state
        now = asyncio.get_running_loop().time()
        now_ms = self._clock.now_ms()
        bounds = records.range_of(records.prefix(records.TAG_LEASE, state.index))
        damaged: list[bytes] = []
        rows = await state.rows.scan_all(bounds, damaged=damaged)
        longest = records.encode_lease(records.LeaseRecord(until_ms=now_ms + self._settings.max_lease_ms))
        for key, value in [*rows, *((key, longest) for key in damaged)]:
            row = records.decode_lease(value)
            loop_until = now + max(0, row.until_ms - now_ms) / 1000
            held = HeldLease(until_ms=row.until_ms, loop_until=loop_until, holder=row.holder)
            self._hold(records.parse_lease_key(key), held)
        self._old = dict.fromkeys(self._held)
        await self._recover_names()
        await self._begin_logging()
        return damaged

    async def _recover_names(self) -> None:
        """A damaged row counts as missing: with an unknown name, no lease protects the segment's orphans from an erasure."""
        bounds = records.range_of(records.prefix(records.TAG_LEASED_NAME, self._state.index))
        for key, value in await self._state.rows.scan_all(bounds, damaged=[]):
            self._gone[records.parse_number(key[3:])] = value.decode()

    async def _begin_logging(self) -> None:
        """Leases of an earlier version are neither in the log nor in the catalogue: the next checkpoint adds them, together
        with the row that records this."""
        state = self._state
        key = records.prefix(records.TAG_LEASES_LOGGED, state.index)
        try:
            if await state.rows.get(key) is not None:
                return
        except DamagedRowError as error:
            _log.error(
                "row of the leases is damaged; writing it again", extra={"container": state.index, **error.fields}
            )
        for lease, held in self._held.items():
            state.rows.put(records.lease_key(state.index, *lease), held.encoded())
        state.rows.put(key, b"")

    def replay(self, operation: codec.LeaseOperation | codec.ReleaseLeaseOperation) -> None:
        """Repeat an operation of the log. The rows may already hold it, and later ones."""
        match operation:
            case codec.LeaseOperation(lease=lease, uid=uid):
                self._extend((lease, uid), operation.until_ms, operation.holder)
                self._old[(lease, uid)] = None
            case codec.ReleaseLeaseOperation(lease=lease, uid=uid):
                for key in self._keys_of(lease, uid):
                    self._drop(key)

    # --- what is in force ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Key]:
        return iter(self._held)

    @property
    def has_recovered(self) -> bool:
        """Whether a lease that recovery found is still in force."""
        return any(key in self._held for key in self._old)

    def segments(self) -> Mapping[int, None]:
        """The segments that a lease holds."""
        return {uid: None for _, uid in self._held}

    def on(self, uids: Mapping[int, object]) -> Sequence[Lease]:
        """The leases on any of the segments, each once, the one with the latest end first."""
        found: dict[int, HeldLease] = {}
        for (lease, uid), held in self._held.items():
            if uid in uids and (lease not in found or found[lease].until_ms < held.until_ms):
                found[lease] = held
        order = sorted(found, key=lambda lease: (-found[lease].until_ms, lease))
        return tuple(
            Lease(id=UUID(int=lease), until_ms=found[lease].until_ms, holder=found[lease].holder) for lease in order
        )

    # --- changes ------------------------------------------------------------------------------------------

    def check(self, until_ms: int, holder: str) -> None:
        """Raise InvalidArgumentError if the time or the holder's name is too long for a lease."""
        if len(holder.encode()) > HOLDER_MAX_BYTES:
            raise InvalidArgumentError("holder of a lease has too many bytes", limit_bytes=HOLDER_MAX_BYTES)
        limit_ms = self._settings.max_lease_ms
        if until_ms - self._clock.now_ms() > limit_ms:
            raise InvalidArgumentError("lease is too long", until_ms=until_ms, limit_ms=limit_ms)

    def take(self, uid: int, lease: int, until_ms: int, holder: str) -> asyncio.Future[None] | None:
        """Hold the chunks of a segment; a repeated call extends the lease. In force at once; durable once the future is done,
        which has the log's error otherwise. No merge or deletion of the segment is queued.

        None: there are too many leases, or too many leased segments. The time and the holder pass ``check``.
        """
        settings, key = self._settings, (lease, uid)
        if lease not in self._segments_of and len(self._segments_of) >= settings.max_leases:
            return None
        if key not in self._held and len(self._held) >= settings.max_leased_segments:
            return None
        held = self._extend(key, until_ms, holder)
        return self._logged(_operation(key, held))

    def _extend(self, key: Key, until_ms: int, holder: str) -> HeldLease:
        held = self._held.get(key)
        until_ms = max(until_ms, held.until_ms if held else 0)
        loop_until = asyncio.get_running_loop().time() + max(0, until_ms - self._clock.now_ms()) / 1000
        holder = holder or (held.holder if held is not None else "")
        held = HeldLease(until_ms=until_ms, loop_until=loop_until, holder=holder)
        self._put(key, held)
        return held

    def has(self, lease: int) -> bool:
        """Whether the lease holds any segment."""
        return lease in self._segments_of

    def held(self, uid: int, lease: int) -> HeldLease | None:
        """How the lease holds the segment now, for ``put_back``."""
        return self._held.get((lease, uid))

    def put_back(self, lease: int, before: Mapping[int, HeldLease | None]) -> None:
        """Undo ``take``: by segment, how the lease held it before. At once; if the log does not take it, the lease ends by
        time after the next start."""
        for uid, held in before.items():
            key = (lease, uid)
            if held is None and key in self._held:
                self._drop(key)
            operations: list[codec.Change] = [codec.ReleaseLeaseOperation(lease=lease, uid=uid)]
            if held is not None:
                self._put(key, held)
                operations.append(_operation(key, held))
            self._log(operations, lambda _: None)
        self._ask_checkpoint()

    async def release(self, lease: int) -> None:
        """End a lease on all segments. It ends at once, and durably when this returns."""
        keys = self._keys_of(lease, ALL_SEGMENTS)
        if keys:
            for key in keys:
                self._drop(key)
            await self._logged(codec.ReleaseLeaseOperation(lease=lease, uid=ALL_SEGMENTS))
            self._ask_checkpoint()

    async def finish(self, lease: int, part: int, parts: int) -> None:
        """Record that a task under the lease is done. After the last task, release the lease."""
        if lease in self._segments_of:
            done = self._done.setdefault(lease, set())
            done.add(part)
            if len(done) == parts:
                await self.release(lease)

    def follow(self, source: Segment, target: Segment) -> None:
        """Move leases after a merge: the target now owns the source's chunks, and so the leases on them."""
        for (lease, uid), held in list(self._held.items()):
            if uid == source.uid:
                own = self._held.get((lease, target.uid))
                if own is None or own.until_ms < held.until_ms:
                    self._put((lease, target.uid), held)

    def keep_name(self, segment: Segment) -> None:
        """Keep the name of a segment that is deleted or merged, for as long as a lease is on it."""
        if segment.uid in self._leases_on:
            self._gone[segment.uid] = segment.name
            self._state.rows.put(self._name_key(segment.uid), segment.name.encode())

    def may_hold(self, uid: int, name: str) -> bool:
        """Whether an orphan of the deleted segment ``uid`` may hold bytes of the deleted segment ``name``: they are the same,
        or ``uid`` may have been merged into ``name``. After a merge, all leases on ``uid`` are on ``name`` too.
        """
        mine = self._gone.get(uid)
        if mine is None or mine == name:
            return True
        same = [other for other, known in self._gone.items() if known == name]
        return all(any((lease, other) in self._held for other in same) for lease, on in self._held if on == uid)

    def drop_expired(self) -> None:
        """End leases that have expired by both clocks. Durable with the next checkpoint: after a crash they expire again."""
        now, now_ms = asyncio.get_running_loop().time(), self._clock.now_ms()
        for key in [key for key, held in self._held.items() if held.until_ms <= now_ms and held.loop_until <= now]:
            self._drop(key)

    def _put(self, key: Key, held: HeldLease) -> None:
        self._hold(key, held)
        self._state.rows.put(records.lease_key(self._state.index, *key), held.encoded())

    def _hold(self, key: Key, held: HeldLease) -> None:
        if key not in self._held:
            lease, uid = key
            self._segments_of[lease] = self._segments_of.get(lease, 0) + 1
            self._leases_on[uid] = self._leases_on.get(uid, 0) + 1
        self._held[key] = held

    def _drop(self, key: Key) -> None:
        del self._held[key]
        lease, uid = key
        self._leases_on[uid] -= 1
        if not self._leases_on[uid]:
            del self._leases_on[uid]
            if self._gone.pop(uid, None) is not None:
                self._state.rows.delete(self._name_key(uid))
        self._segments_of[lease] -= 1
        if not self._segments_of[lease]:
            del self._segments_of[lease]
            self._done.pop(lease, None)
        self._state.rows.delete(records.lease_key(self._state.index, *key))

    def _name_key(self, uid: int) -> bytes:
        return records.uid_key(records.TAG_LEASED_NAME, self._state.index, uid)

    async def durable(self, taken: Sequence[asyncio.Future[None]]) -> None:
        """Return when what ``take`` returned is durable. Raises what the log raised for one of them."""
        for ended in await asyncio.gather(*taken, return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended

    def _keys_of(self, lease: int, uid: int) -> Sequence[Key]:
        return [key for key in self._held if key[0] == lease and uid in (ALL_SEGMENTS, key[1])]

    def _logged(self, operation: codec.Change) -> asyncio.Future[None]:
        """Queue the operation. The future is done once it is durable; cancelled, the operation still happens."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(result: object) -> None:
            if answer.done():
                return
            if isinstance(result, PenstockError):
                answer.set_exception(result)
                answer.exception()  # a caller that has left is no reason for a warning
            else:
                answer.set_result(None)

        self._log([operation], done)
        return answer


def _operation(key: Key, held: HeldLease) -> codec.LeaseOperation:
    return codec.LeaseOperation(lease=key[0], uid=key[1], until_ms=held.until_ms, holder=held.holder)
