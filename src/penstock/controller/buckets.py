"""Which streams this controller looks after: buckets, each owned by one controller at a time.

If a store has only one controller, that controller owns all buckets from the start. If several share a store, each
sends heartbeats: it changes its heartbeat record a few times per lease. A controller that has not seen another's record
change for a whole lease, by its own steady clock, takes over the other's buckets, by compare-and-set with a higher
epoch. A controller whose heartbeats have failed for half a lease stops all its work on streams. So no two controllers
ever work on the same stream. Source: docs/design/0012-retention-clock.md, "Buckets".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.codec.control.streams import CounterRecord
from penstock.codec.control.truncations import BucketRecord, HeartbeatRecord
from penstock.controller import retention_keys
from penstock.controller.metadata import Metadata, R, Stored, changing
from penstock.controller.set_aside import SetAside
from penstock.core.streams.buckets import bucket_of, distribute
from penstock.model.errors import BadKeyVersionError, KeyNotFoundError, PenstockError, UnavailableError
from penstock.model.names import StreamName
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.tables import KEY_ABSENT, TableEntry
from penstock.ports.rng import Rng

log = logging.getLogger(__name__)

BEATS_PER_LEASE = 5  # heartbeats; four may be lost before a controller counts as dead


@dataclass(slots=True)
class _Seen:
    """Another controller's heartbeat: when its record last changed, by our own steady clock."""

    beat: int
    changed_s: float
    record: Stored[HeartbeatRecord]


class Buckets:
    """This controller's buckets. ``steady`` counts elapsed seconds. All arguments are borrowed.

    ``lease_ms=None``: no other controller works on the store.
    """

    def __init__(
        self,
        metadata: Metadata,
        rng: Rng,
        steady: Callable[[], float],
        set_aside: SetAside,
        *,
        count: int,
        lease_ms: int | None,
    ) -> None:
        self._metadata = metadata
        self._set_aside = set_aside
        self._steady = steady
        self._lease_s = None if lease_ms is None else lease_ms / 1000
        self.controller = rng.uuid().hex
        self.count = count
        self._owned: dict[int, Stored[BucketRecord]] = {}
        self._seen: dict[str, _Seen] = {}
        self._beat = 0
        self._renewed_s: float | None = None
        self._fresh: set[int] = set()

    @property
    def owned(self) -> Sequence[int]:
        """Buckets that this controller may work on now, sorted; empty if others may consider it dead."""
        return sorted(self._owned) if self._is_alive() else []

    def owns(self, name: StreamName) -> bool:
        """Whether this controller looks after the stream, as of now."""
        return bucket_of(str(name), self.count) in self._owned and self._is_alive()

    def taken(self) -> Sequence[int]:
        """Buckets taken since the last call. All of their streams must be looked at."""
        fresh, self._fresh = sorted(self._fresh), set()
        return fresh

    def _is_alive(self) -> bool:
        if self._lease_s is None:
            return True
        return self._renewed_s is not None and self._steady() - self._renewed_s < self._lease_s / 2

    async def start(self) -> None:
        """Fix the number of buckets at the first start of the store. The only controller of a store takes them all."""
        if self._lease_s is None:
            try:
                self.count = await changing(self._fix_count)
                await changing(self._take_all)
            except UnavailableError as error:
                # No other controller can take them. A store that is full, or slow with its metadata, must still start,
                # because retention frees space.
                log.warning("ownership of buckets could not be written", extra={"error": str(error)})
                self._take_unwritten()
        else:
            self.count = await changing(self._fix_count)
            await self.turn()

    def _take_unwritten(self) -> None:
        for number in range(self.count):
            self._owned[number] = Stored(key=retention_keys.bucket(number), value=None, version=KEY_ABSENT)
            self._fresh.add(number)

    async def _fix_count(self) -> int:
        (entry,) = await self._metadata.entries([retention_keys.BUCKET_COUNT])
        found = self._read(entry, CounterRecord)
        if found.value is None:
            await self._metadata.put(found.put(CounterRecord(value=self.count)))
            return self.count
        return found.value.value

    async def _take_all(self) -> None:
        records = await self._records()
        await self._take(records, range(self.count))

    async def run(self) -> None:
        """Send heartbeats, and take and release buckets as controllers come and go, forever. Returns at once if this is
        the only controller."""
        while self._lease_s is not None:
            await asyncio.sleep(self._lease_s / BEATS_PER_LEASE)
            try:
                await self.turn()
            except PenstockError as error:
                log.warning("heartbeat of the controller failed", extra={"error": str(error)})
            except Exception:
                log.exception("heartbeat of the controller failed with an unexpected error")

    async def turn(self) -> None:
        """Send one heartbeat and check the others once."""
        began_s = self._steady()
        if self._renewed_s is not None and not self._is_alive():
            # Others may have taken over. From here on the records decide which buckets are owned.
            self._owned.clear()
        self._beat += 1
        key = retention_keys.heartbeat(self.controller)
        found = await self._metadata.get(key, HeartbeatRecord)
        await self._metadata.put(found.put(HeartbeatRecord(beat=self._beat)))
        self._renewed_s = began_s
        alive = await self._look()
        await self._settle(alive)

    async def _look(self) -> list[str]:
        """Controllers that this one considers alive."""
        now_s, found = self._steady(), dict[str, _Seen]()
        async for entry in self._metadata.scan_all(retention_keys.HEARTBEATS):
            name = entry.key[len(retention_keys.HEARTBEATS) :].decode("utf-8", "replace")
            record = self._read(entry, HeartbeatRecord)
            # The version of an unreadable record still shows life: the controller that writes it is alive.
            beat = entry.version if record.value is None else record.value.beat
            before = self._seen.get(name)
            changed_s = before.changed_s if before is not None and before.beat == beat else now_s
            found[name] = _Seen(beat, changed_s, record)
        self._seen = found
        alive, dead = [self.controller], list[Stored[HeartbeatRecord]]()
        for name, seen in found.items():
            if name == self.controller:
                continue
            if self._lease_s is not None and now_s - seen.changed_s >= self._lease_s:
                dead.append(seen.record)
            else:
                alive.append(name)
        await self._metadata.remove_if_unchanged([record.remove() for record in dead])
        return alive

    async def _settle(self, alive: Sequence[str]) -> None:
        """Release the buckets that the rule assigns to others; take the free ones that it assigns to us."""
        records = await self._records()
        before: dict[str, list[int]] = {}
        for bucket, item in records.items():
            if item.value is not None and item.value.owner in alive:
                before.setdefault(item.value.owner, []).append(bucket)
        wanted = distribute({name: tuple(owned) for name, owned in before.items()}, alive, self.count)
        mine = set(wanted[self.controller])
        for bucket in before.get(self.controller, []):
            if bucket in mine:
                self._owned[bucket] = records[bucket]
            else:
                await self._let_go(records[bucket], bucket)
        others = {bucket for name, owned in before.items() for bucket in owned}
        await self._take(records, sorted(mine - others))

    async def _let_go(self, record: Stored[BucketRecord], bucket: int) -> None:
        self._owned.pop(bucket, None)
        try:
            await self._metadata.put(record.put(BucketRecord(owner="", epoch=_epoch(record) + 1)))
        except (BadKeyVersionError, KeyNotFoundError):
            # Another controller has already taken it.
            return

    async def _take(self, records: dict[int, Stored[BucketRecord]], buckets: Sequence[int]) -> None:
        """Take buckets in one step. If another controller was faster, the next turn tries again. Raises what ``put``
        raises if this is the only controller, because then nobody can be faster."""
        if not buckets:
            return
        taking = {bucket: BucketRecord(owner=self.controller, epoch=_epoch(records[bucket]) + 1) for bucket in buckets}
        try:
            versions = await self._metadata.put(*(records[bucket].put(record) for bucket, record in taking.items()))
        except (BadKeyVersionError, KeyNotFoundError):
            if self._lease_s is None:
                raise
            return
        for (bucket, record), version in zip(taking.items(), versions, strict=True):
            self._owned[bucket] = Stored(key=records[bucket].key, value=record, version=version)
            self._fresh.add(bucket)

    async def _records(self) -> dict[int, Stored[BucketRecord]]:
        entries = await self._metadata.entries([retention_keys.bucket(number) for number in range(self.count)])
        return {number: self._read(entry, BucketRecord) for number, entry in enumerate(entries)}

    def _read(self, entry: TableEntry, kind: type[R]) -> Stored[R]:
        """A record that cannot be read counts as free: the controller that takes the bucket replaces it."""
        value = None if entry.version == KEY_ABSENT else self._set_aside.read(entry, kind)
        return Stored(key=entry.key, value=value, version=entry.version)

    async def close(self) -> None:
        """Let others take over at once. If the write fails, they take over after a lease."""
        owned, self._owned = self._owned, {}
        if self._lease_s is None or not owned:
            return
        for bucket, record in owned.items():
            await self._let_go(record, bucket)
        await self._metadata.remove_keys([retention_keys.heartbeat(self.controller)])


def _epoch(record: Stored[BucketRecord]) -> int:
    return 0 if record.value is None else record.value.epoch
