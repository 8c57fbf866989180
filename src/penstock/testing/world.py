"""A whole store on in-memory storage, for tests that crash, reopen and inspect it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock.app.telemetry import Counters
from penstock.controller.controller import Controller, open_controller
from penstock.controller.settings import ControllerSettings
from penstock.ports.chunks import ChunkStorage
from penstock.ports.clock import Clock
from penstock.ports.control.layout import Endpoint
from penstock.ports.durable_log import DurableLog
from penstock.ports.keyvalue import KeyValueStore
from penstock.ports.objects import Objects
from penstock.ports.rng import Rng
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.storage.memory.memory_chunks import MemoryChunks
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.storage.memory.memory_log import MemoryLog, MemoryLogState
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.storage.memory.memory_signing_keys import MemorySigningKeys
from penstock.testing.fakes import FakeClock, InlineOffload, SeededRng

QUIET = ControllerSettings(sweep_ms=None, retention_cycle_ms=None, watermark_ms=None)
"""Settings of a controller that does nothing by itself: tests start each sweep and each retention cycle."""
_SETTINGS: dict[str, Any] = {
    "containers": 2,
    "tier_gather_bytes": 1,
    "flush_interval_s": 3600.0,
    "checkpoint_interval_s": 3600.0,
}


class World:
    """Storage, clock and counters that outlive the stores opened on them. ``store`` is the open store.

    A test may replace ``keyvalue``, ``chunks``, ``objects``, ``clock`` and ``rng`` before it opens a store. A subclass
    may use another log, or another store class.

    Args:
        clock, rng: Used instead of a ``FakeClock`` and a ``SeededRng``. catalogue: Whether tier 2 keeps a catalogue, in
        ``objects``. controller: Settings of the controller. endpoint: The address that the controller returns for all
        segments. settings: Fields of ``StoreSettings``. By default there are two containers, which tier and checkpoint
        only when a test requests it.
    """

    make: Callable[..., SegmentStore] = SegmentStore
    store: SegmentStore

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        catalogue: bool = False,
        controller: ControllerSettings = QUIET,
        endpoint: Endpoint | None = None,
        **settings: Any,
    ) -> None:
        self.settings = StoreSettings(**(_SETTINGS | settings))
        self.controller_settings = controller
        self.endpoint = endpoint or Endpoint(host="127.0.0.1", port=12345)
        self.log_state = MemoryLogState()
        self.keyvalue: KeyValueStore = MemoryKeyValue()
        self.chunks: ChunkStorage = MemoryChunks(brings_back=True)
        self.objects: Objects | None = MemoryObjects() if catalogue else None
        self.clock = clock or FakeClock()
        self.rng = rng or SeededRng()
        self.signing = MemorySigningKeys()
        self.telemetry = Counters()
        self.options: dict[str, Any] = {}
        """Further arguments of ``open_segment_store``: ``disk``, ``owned``, ``shared``."""

    def make_log(self) -> DurableLog:
        """The log of the next store. It fences the previous log."""
        return MemoryLog(self.log_state)

    async def open(self) -> SegmentStore:
        """Recover and start a store. Raises what ``SegmentStore.recover`` raises."""
        parts = StoreParts(
            keyvalue=self.keyvalue,
            chunks=self.chunks,
            clock=self.clock,
            rng=self.rng,
            offload=InlineOffload(),
            telemetry=self.telemetry,
            settings=self.settings,
            catalogue=self.objects,
        )
        self.store = self.make(self.make_log(), parts, **self.options)
        await self.store.recover()
        self.store.start()
        return self.store

    async def crash(self) -> SegmentStore:
        """End the store without a checkpoint, and recover a new one from the log."""
        await self.store.close(checkpoint=False)
        return await self.open()

    async def restart(self) -> SegmentStore:
        """Close the store cleanly, and open a new one."""
        await self.store.close()
        return await self.open()

    @asynccontextmanager
    async def opened(self, *, crash: bool = False) -> AsyncIterator[SegmentStore]:
        """A store that is open until the block ends. With ``crash``, or after an error, it ends without a
        checkpoint."""
        store = await self.open()
        try:
            yield store
        except BaseException:
            await store.close(checkpoint=False)
            raise
        await store.close(checkpoint=not crash)

    @asynccontextmanager
    async def serving(self, *, crash: bool = False) -> AsyncIterator[tuple[SegmentStore, Controller]]:
        """As ``opened``, with a controller. Data ages by the ``FakeClock``, or, with another clock, by the event loop's
        time."""
        steady = self.clock.passed_s if isinstance(self.clock, FakeClock) else None
        async with (
            self.opened(crash=crash) as store,
            open_controller(
                store,
                self.clock,
                self.rng,
                lambda _: self.endpoint,
                self.telemetry,
                self.controller_settings,
                steady=steady,
                signing=self.signing,
            ) as controller,
        ):
            yield store, controller
