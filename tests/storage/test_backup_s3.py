"""A backup of a store whose chunks are in a bucket needs no bucket to be restored."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_world import S3Server, running

from penstock.app.backup.restore import restore_backup, verify_backup
from penstock.app.backup.take import take_backup
from penstock.app.embedded import Runtime, embedded_settings, open_runtime
from penstock.client.store import AsyncStore

pytestmark = pytest.mark.server


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running("swift", tmp_path_factory.mktemp("swift")) as found:
        yield found


def client_of(runtime: Runtime) -> AsyncStore:
    return AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng)


def test_a_running_store_with_chunks_in_a_bucket_is_restored_without_it(tmp_path: Path, server: S3Server) -> None:
    place = f"{server.new_bucket()}/plant"
    events = [f"{number} {'x' * 200}" for number in range(2000)]
    settings = embedded_settings(tmp_path / "store", {"tier2": place, "tier2_endpoint": server.endpoint})

    async def main() -> None:
        async with open_runtime(settings) as runtime:
            stream = await client_of(runtime).create_stream("s/t", segments=1, create_scope=True)
            async with stream.writer() as writer:
                await writer.write_many(events[:1500])
            await runtime.segments.flush()
            async with stream.writer() as writer:
                await writer.write_many(events[1500:])
            manifest = await take_backup(tmp_path / "store", tmp_path / "backup")
        assert manifest.tier2 == place
        assert sum(item.size_bytes for path, item in manifest.files.items() if path.startswith("chunks/")) > 300_000
        assert not manifest.missing
        assert (await verify_backup(tmp_path / "backup"))[1] == {}
        await restore_backup(tmp_path / "backup", tmp_path / "restored")
        assert not (tmp_path / "restored" / "tier2.json").exists()
        async with (
            open_runtime(embedded_settings(tmp_path / "restored", {})) as runtime,
            client_of(runtime).stream("s/t").reader(until_tail=True) as reader,
        ):
            assert [event.data.decode() async for event in reader] == events

    asyncio.run(main())
