"""A store with its chunks in a bucket continues on another machine, while the first one still believes that it owns it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.app.embedded import embedded_settings, open_runtime
from penstock.client.store import AsyncStore
from penstock.model.errors import PenstockError
from penstock.testing.bookkeeper.bookies import SimBookKeeper
from tests.cluster.replicated_kit import URL, put_in_place
from tests.storage.s3_world import S3Server, running

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running("swift", tmp_path_factory.mktemp("swift")) as found:
        yield found


async def events_of(store: AsyncStore) -> list[int]:
    async with store.stream("s/t").reader(until_tail=True) as reader:
        return [int(event.data) async for event in reader]


async def append(store: AsyncStore, numbers: range) -> None:
    async with store.stream("s/t").writer() as writer:
        for number in numbers:
            await writer.write(b"%d" % number)


def test_a_store_with_chunks_in_a_bucket_starts_elsewhere(
    tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(SimBookKeeper(), monkeypatch)
    place = {
        "tier2": f"{server.new_bucket()}/store1",
        "tier2_endpoint": server.endpoint,
        "log_at": URL,
        "take_over": True,
    }

    async def main() -> None:
        async with open_runtime(embedded_settings(tmp_path / "first", place)) as first:
            store = AsyncStore(first.segments, first.controller, first.clock, first.rng)
            await store.create_stream("s/t", segments=1, create_scope=True)
            await append(store, range(1000))
            await first.segments.flush()
            await append(store, range(1000, 1500))
            async with open_runtime(embedded_settings(tmp_path / "second", place)) as second:
                elsewhere = AsyncStore(second.segments, second.controller, second.clock, second.rng)
                assert await events_of(elsewhere) == list(range(1500))
                await append(elsewhere, range(1500, 1600))
                with pytest.raises(PenstockError):
                    await first.segments.flush()
                await second.segments.flush()
        async with open_runtime(embedded_settings(tmp_path / "third", place)) as third:
            assert await events_of(AsyncStore(third.segments, third.controller, third.clock, third.rng)) == list(
                range(1600)
            )

    asyncio.run(main())
