"""Erasure with real bookies: what an event holds is in no file of theirs, before the erasure and after it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import cluster_engines
import pytest

import penstock
from penstock.codec.store.container_record import decode_record
from penstock.codec.store.ledger_keys import DIRECTORY, decode_key_object
from penstock.model.ledgers import LedgerSpec
from penstock.storage.cluster.nodes import open_nodes
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from tests.app.erasure_events import events_of, fill, hits_of

pytestmark = pytest.mark.cluster

CANARY = b"canary-7f3a"
CONTROL = b"canary-of-a-ledger-without-encryption"


def files_with(bookies: cluster_engines.Bookies, needle: bytes) -> list[str]:
    files = [file for server in bookies.servers for file in server.directory.rglob("*") if file.is_file()]
    assert files
    return [str(file) for file in files if needle in file.read_bytes()]


def test_a_canary_is_in_no_file_of_the_bookies_before_and_after_its_erasure(
    zookeeper: cluster_engines.ZooKeeper, bookies: cluster_engines.Bookies, tmp_path: Path
) -> None:
    bookies.start()
    path = f"/penstock/canary-{uuid4().hex[:8]}"
    (tmp_path / "tier2").mkdir()
    url = f"bookkeeper://{zookeeper.address}{path}?ledgers={bookies.root}"

    async def write_control() -> None:
        async with (
            open_nodes(zookeeper.address) as nodes,
            open_ledgers(nodes, root=bookies.root, clock=RealClock(), rng=RealRng()) as ledgers,
        ):
            writer = await ledgers.create(LedgerSpec(), b"header")
            await writer.add([CONTROL])
            await writer.close()

    async def record() -> object:
        async with open_nodes(zookeeper.address) as nodes:
            return decode_record((await nodes.read(path))[0])

    with penstock.open(tmp_path / "data", log_at=url, tier2=str(tmp_path / "tier2")) as store:
        stream = store.create_stream("s/t", segments=2, create_scope=True)
        fill(stream, 3000)
        hits = hits_of(events_of(stream))
        assert hits
        asyncio.run(write_control())
        assert files_with(bookies, CONTROL), "the search finds what a bookie has"
        assert files_with(bookies, CANARY) == []
        receipt = stream.erase(hits, who="ann", why="request 17")
        assert files_with(bookies, CANARY) == []
        assert "the bytes on bookies are unreadable" in receipt["tiers"]["log"]
        keys = {file.name: file.read_bytes() for file in (tmp_path / "tier2" / DIRECTORY).glob("*/*")}
        for key in receipt["log_keys"]["keys"]:
            assert not isinstance(decode_key_object(keys[key], name=key), bytes)
        fill(stream, 10, start=3000)
    found = asyncio.run(record())
    assert all(one.sealed for one in found.ledgers)  # type: ignore[attr-defined]
    with penstock.open(tmp_path / "data", log_at=url, tier2=str(tmp_path / "tier2")) as store:
        assert len(events_of(store.stream("s/t"))) == 3010 - len(hits)
    assert files_with(bookies, CANARY) == []
