"""A store that runs elsewhere, reached over Pravega's protocols."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.app.telemetry import Counters
from penstock.client.blocking.stores import Store
from penstock.client.options import number
from penstock.client.store import AsyncStore
from penstock.model.redaction import redacted_address
from penstock.net.dial.controller import RemoteController, dial_controller
from penstock.net.dial.security import security_for
from penstock.net.dial.segment_tokens import SegmentTokens
from penstock.net.dial.segments import RemoteSegments
from penstock.net.presented import ConnectOptions, Presented, presented
from penstock.ports import forks
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

DIAL_S = 5.0
"""How long commands wait for a server that does not answer. A refused connection is reported within 2 s. After the first
answer, a restart of up to 30 s is waited for."""


@asynccontextmanager
async def open_remote(
    address: str, *, dial_s: float | None = None, shown: Presented | None = None
) -> AsyncIterator[tuple[RemoteSegments, RemoteController]]:
    """Services of the store whose controller listens on ``address`` (``host:port``).

    ``dial_s`` is how long to wait for the first answer (default: as for any, 30 s, so that a restart goes unnoticed).
    ``shown``: what the caller presents; None: what the environment names. Raises: NotConnectedError where nothing answers,
    InvalidArgumentError where it is not an address, TlsError, UnauthenticatedError.
    """
    if dial_s is not None:
        number("dial_s", dial_s, least=0)
    shown = presented() if shown is None else shown
    security = security_for(
        address,
        tls=shown.tls,
        default_tls=shown.default_tls,
        credentials=shown.credentials,
        clock=RealClock(),
        insecure=shown.insecure,
    )
    async with forks.OwnedExitStack() as stack:
        controller = await stack.enter_async_context(dial_controller(address, dial_s=dial_s, security=security))
        segments = await stack.enter_async_context(
            RemoteSegments(
                controller,
                native=controller.segments,
                rng=RealRng(),
                telemetry=Counters(),
                security=security,
                tokens=SegmentTokens(controller.segment_token),
            )
        )
        controller.use_line(segments.calls)
        yield segments, controller


def connect_store(
    address: str = "localhost:9090", options: ConnectOptions | None = None, *, dial_s: float | None = DIAL_S
) -> Store:
    """A store that runs elsewhere, with the same API as an embedded one. Close it, or use it in a ``with`` block."""
    shown = presented(options)
    return Store(lambda: open_remote(address, dial_s=dial_s, shown=shown), place=f"at {redacted_address(address)}")


@asynccontextmanager
async def connect_async_store(
    address: str = "localhost:9090", options: ConnectOptions | None = None, *, dial_s: float | None = DIAL_S
) -> AsyncIterator[AsyncStore]:
    """The same for the running event loop. Raises as ``open_remote``."""
    async with open_remote(address, dial_s=dial_s, shown=presented(options)) as (segments, controller):
        yield AsyncStore(segments, controller, RealClock(), RealRng())
