"""Check that a server can listen on its addresses, before it creates a store for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from penstock.app.settings import StandaloneSettings
from penstock.net.listening import listen_on


async def check_addresses(settings: StandaloneSettings, workers: int) -> None:
    """Bind all named ports and release them at once: another process may still take one afterwards.

    Raises AddressInUseError, InvalidArgumentError (ports of workers that run into another one).
    """
    with ExitStack() as taken:
        for what, port in _ports(settings, workers):
            for item in await listen_on(settings.host, port, what=what):
                taken.enter_context(item)


def _ports(settings: StandaloneSettings, workers: int) -> Iterator[tuple[str, int]]:
    for worker in range(workers):
        yield "segment store's", settings.worker_port(worker)
    yield "HTTP", settings.http_port
    yield "gRPC", settings.controller_port
