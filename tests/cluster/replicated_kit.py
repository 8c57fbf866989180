"""Puts bookies and coordinator in memory where a store expects the real ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.app.replicated import replicated_log
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.testing.bookkeeper.bookies import SimBookKeeper

URL = "bookkeeper://zk1:2181,zk2:2181/penstock/store1"


def put_in_place(simulated: SimBookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookies and coordinator in memory, where a store expects the real ones."""

    @asynccontextmanager
    async def open_nodes(hosts: str) -> AsyncIterator[object]:
        yield simulated.nodes

    def connected(nodes, **settings):
        return open_ledgers(nodes, **settings, connect=simulated.connect)

    monkeypatch.setattr(replicated_log, "open_nodes", open_nodes)
    monkeypatch.setattr(replicated_log, "open_ledgers", connected)
