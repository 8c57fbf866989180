"""Check whether a store would start on a directory: its own checks and recovery, on files opened read-only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from penstock.app.integrity.offline import Offline
from penstock.app.integrity.start_check import StartFacts, check_start
from penstock.app.settings import EmbeddedSettings
from penstock.app.telemetry import Counters
from penstock.app.workers.layout import CONTAINERS_EACH, layout_of_worker
from penstock.model.errors import PenstockError
from penstock.ports.durable_log import LogAddress
from penstock.ports.files import Files
from penstock.ports.offload import Offload
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.storage.log.scan import frames_of
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.data_directory import check_directory
from penstock.storage.machine.rng import RealRng
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.storage.memory.memory_log import MemoryLog, MemoryLogState


class _SeenLog(MemoryLog):
    """A log that replays the frames of files, and keeps in memory what is appended."""

    def __init__(self, files: Files, facts: StartFacts) -> None:
        epoch = 0 if facts.epoch is None else facts.epoch.epoch
        super().__init__(MemoryLogState(last=0 if facts.image is None else facts.image.last, epoch=epoch))
        self._files = files
        self._facts = facts

    async def replay(self) -> AsyncIterator[tuple[LogAddress, bytes]]:
        image, epoch = self._facts.image, self._facts.epoch
        if image is not None and epoch is not None:
            for index, accepted in enumerate(image.chain):
                upto = image.last_of(index)
                async for sequence, payload in frames_of(self._files, accepted, seed=epoch.seed, upto=upto):
                    yield LogAddress(sequence), payload
        async for item in super().replay():
            yield item


async def start_refusal(
    store: Offline,
    *,
    offload: Offload,
    endpoint: str | None,
    insecure: bool,
    look: Callable[[SegmentStore], Awaitable[None]] | None = None,
) -> PenstockError | OSError | None:
    """Why a start would be refused, or None. Recovers into the copy of the metadata that ``store`` holds, and changes nothing
    else. ``look`` is called with what a start recovers.

    Takes the memory and the time of a recovery.
    """
    try:
        async with rehearse(store, offload=offload, endpoint=endpoint, insecure=insecure) as segments:
            if look is not None:
                await look(segments)
            return None
    except (PenstockError, OSError) as error:
        return error


@asynccontextmanager
async def rehearse(
    store: Offline, *, offload: Offload, endpoint: str | None = None, insecure: bool = False
) -> AsyncIterator[SegmentStore]:
    """The segments as a start would recover them, read-only. Changes nothing but the copy of the metadata in ``store``.

    Raises what a start raises: CorruptDataError, InvalidArgumentError, VersionTooNewError, UnavailableError, OSError.
    """
    worker = layout_of_worker(store.data)
    containers, owned = (CONTAINERS_EACH, None) if worker is None else worker
    settings = EmbeddedSettings(data=store.data, tier2_endpoint=endpoint, tier2_insecure=insecure)
    check_directory(store.data)
    facts = await check_start(settings, offload=offload, containers=containers, owned=owned)
    async with AsyncExitStack() as stack:
        log = _SeenLog(store.files, facts)
        stack.push_async_callback(log.close)
        segments = SegmentStore(
            log,
            StoreParts(
                keyvalue=MemoryKeyValue() if store.keyvalue is None else store.keyvalue,
                chunks=store.source.chunks,
                clock=RealClock(),
                rng=RealRng(),
                offload=offload,
                telemetry=Counters(),
                settings=StoreSettings(containers=containers),
                catalogue=store.source.objects,
            ),
            owned=owned,
        )
        await segments.recover()
        yield segments
