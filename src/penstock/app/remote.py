"""A store that runs elsewhere, reached over Pravega's protocols."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from penstock.app.telemetry import Counters
from penstock.client.blocking import Store
from penstock.net.dial.controller import RemoteController, dial_controller
from penstock.net.dial.segments import RemoteSegments
from penstock.storage.real_rng import RealRng


@asynccontextmanager
async def open_remote(
    address: str, *, dial_s: float | None = None
) -> AsyncIterator[tuple[RemoteSegments, RemoteController]]:
    """Services of the store whose controller listens on ``address`` (``host:port``).

    ``dial_s`` is how long to wait for the first answer (default: as for any, 30 s, so that a restart goes unnoticed).
    Raises: NotConnectedError where nothing answers, InvalidArgumentError where it is not an address.
    """
    async with AsyncExitStack() as stack:
        controller = await stack.enter_async_context(dial_controller(address, dial_s=dial_s))
        segments = await stack.enter_async_context(
            RemoteSegments(controller, native=controller.native, rng=RealRng(), telemetry=Counters())
        )
        yield segments, controller


def connect_store(address: str = "localhost:9090", *, dial_s: float | None = None) -> Store:
    """A store that runs elsewhere, with the same API as an embedded one. Close it, or use it in a ``with`` block."""
    return Store(lambda: open_remote(address, dial_s=dial_s))
