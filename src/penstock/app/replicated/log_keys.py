"""Where the secrets of a log's ledgers are: in tier 2 of its store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from penstock.app.replicated.log_place import NO_ERASURE
from penstock.app.settings import EmbeddedSettings
from penstock.app.tier2 import open_tier_objects
from penstock.ports.clock import Clock
from penstock.ports.cluster.ledger_keys import LedgerKeys
from penstock.ports.files import Files
from penstock.ports.offload import Offload
from penstock.storage.ledgers.keyring import Sealing
from penstock.storage.objects.ledger_keys import ObjectLedgerKeys


@asynccontextmanager
async def open_sealing(
    settings: EmbeddedSettings,
    files: Files,
    *,
    offload: Offload,
    clock: Clock,
    may_write: Callable[[], bool] = lambda: True,
) -> AsyncIterator[Sealing]:
    """How the log of the store in ``files`` encrypts its ledgers. Makes no request. Raises as ``locate_tier``."""
    async with AsyncExitStack() as stack:
        objects = await stack.enter_async_context(open_tier_objects(settings, files, offload=offload))

        def keys(uid: str) -> LedgerKeys:
            return ObjectLedgerKeys(objects, uid=uid, clock=clock)

        yield Sealing(keys=keys, clock=clock, may_write=may_write, refusal=NO_ERASURE)
