"""Objects in memory that answer late, wrongly or never, as those of a bucket do, and logs in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from random import Random

from penstock.model.errors import AlreadyExistsError, ConditionFailedError, UnavailableError
from penstock.storage.ledgers.keyring import Sealing
from penstock.storage.ledgers.ledger_log import LedgerLog, open_ledger_log
from penstock.storage.ledgers.limits import LedgerLogLimits
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.storage.object_log.bucket_record import BucketRecord
from penstock.storage.object_log.ledgers import open_object_ledgers
from penstock.storage.object_log.limits import ObjectLogLimits
from penstock.storage.objects.ledger_keys import ObjectLedgerKeys
from penstock.testing import FakeClock, SeededRng

RECORD = "log/record"
LIMITS = LedgerLogLimits(frame_max_bytes=20_000, entry_max_bytes=4_000, ledger_bytes=30_000, retry_s=(0.01, 0.05))
OBJECTS = ObjectLogLimits(object_bytes=3_000, interval_s=0.01, retry_s=(0.01, 0.1))


class WildBucket:
    """Objects in memory. ``chaos``: how often a call has an unknown outcome: it happens now, later, or never. Cancelled
    calls happen later or never."""

    def __init__(self, seed: int = 0, *, chaos: float = 0.0, delay_s: float = 0.0) -> None:
        self.objects: dict[str, bytes] = {}
        self.keys = MemoryObjects()
        self.clock = FakeClock()
        self.chaos = chaos
        self.delay_s = delay_s
        self.is_away = False
        self.writes: list[str] = []
        self._random = Random(seed)
        self._tags: dict[str, int] = {}
        self._tag = 0

    def client(self) -> WildObjects:
        return WildObjects(self)

    def sealing(self) -> Sealing:
        def keys(uid: str) -> ObjectLedgerKeys:
            return ObjectLedgerKeys(self.keys, uid=uid, clock=self.clock)

        return Sealing(keys=keys, clock=self.clock, may_write=lambda: True)

    def put(self, name: str, data: bytes) -> str:
        self._tag += 1
        self.objects[name], self._tags[name] = data, self._tag
        self.writes.append(name)
        return self.tag(name)

    def tag(self, name: str) -> str:
        return str(self._tags[name])

    async def travel(self) -> None:
        """The way of a request or an answer."""
        await asyncio.sleep(self._random.random() * self.delay_s)

    def is_unlucky(self) -> bool:
        return self.is_away or self._random.random() < self.chaos

    def late_s(self) -> float | None:
        """When a request that nobody waits for takes effect; None: never."""
        return None if self._random.random() < 0.5 else self._random.random() * 30 * self.delay_s


class WildObjects:
    """One client of a bucket: ``ExclusiveObjects``, and what the record needs."""

    def __init__(self, bucket: WildBucket) -> None:
        self.bucket = bucket

    async def create_new(self, name: str, data: bytes) -> None:
        def create() -> str:
            if name in self.bucket.objects:
                raise AlreadyExistsError("object exists", object=name)
            return self.bucket.put(name, data)

        await self._change(create)

    async def replace(self, name: str, data: bytes, *, tag: str) -> str:
        def replace() -> str:
            if name not in self.bucket.objects:
                raise FileNotFoundError(name)
            if self.bucket.tag(name) != tag:
                raise ConditionFailedError("object has another version", object=name)
            return self.bucket.put(name, data)

        return await self._change(replace)

    async def read_tagged(self, name: str) -> tuple[bytes, str]:
        await self._ask()
        if name not in self.bucket.objects:
            raise FileNotFoundError(name)
        found = self.bucket.objects[name], self.bucket.tag(name)
        await self.bucket.travel()
        return found

    async def read_whole(self, name: str) -> bytes:
        return (await self.read_tagged(name))[0]

    async def read(self, name: str, start: int, length: int) -> bytes:
        return (await self.read_whole(name))[start : start + length]

    async def delete(self, name: str) -> None:
        await self._ask()
        self.bucket.objects.pop(name, None)

    async def list(self, directory: str) -> Mapping[str, int]:
        await self._ask()
        return {name: len(data) for name, data in self.bucket.objects.items() if name.startswith(f"{directory}/")}

    async def _ask(self) -> None:
        await self.bucket.travel()
        if self.bucket.is_unlucky():
            raise UnavailableError("no answer")

    async def _change(self, change) -> str:
        try:
            await self.bucket.travel()
        except asyncio.CancelledError:
            self._later(change)
            raise
        if self.bucket.is_unlucky():
            self._later(change)
            raise UnavailableError("no answer")
        answer = change()
        await self.bucket.travel()
        if self.bucket.is_unlucky():
            raise UnavailableError("the answer was lost")
        return answer

    def _later(self, change) -> None:
        late_s = self.bucket.late_s()
        if late_s is None:
            return

        def arrive() -> None:
            with suppress(AlreadyExistsError, ConditionFailedError, FileNotFoundError):  # nobody waits for the answer
                change()

        asyncio.get_running_loop().call_later(late_s, arrive)


@asynccontextmanager
async def open_log(
    bucket: WildBucket, *, seed: int = 1, limits: LedgerLogLimits = LIMITS, objects: ObjectLogLimits = OBJECTS
) -> AsyncIterator[LedgerLog]:
    rng, client = SeededRng(seed), bucket.client()
    async with (
        open_object_ledgers(client, clock=bucket.clock, rng=rng, limits=objects) as ledgers,
        open_ledger_log(
            ledgers, BucketRecord(client), path=RECORD, rng=rng, limits=limits, sealing=bucket.sealing()
        ) as log,
    ):
        yield log
