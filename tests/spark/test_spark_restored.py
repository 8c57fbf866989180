"""Checkpoints of queries that had read past a backup, on the store that was restored from it."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from spark_driver import SCHEMA, Driver
from spark_world import World, keyed

from penstock.app.backup.restore import restore_backup
from penstock.app.backup.take import take_backup
from penstock.app.embedded import open_runtime
from penstock.app.settings import EmbeddedSettings
from penstock.model.errors import InvalidCutError
from penstock.model.names import StreamName
from penstock.spark.connect import Services, close_links, link
from penstock.spark.options import parse_read
from penstock.spark.reading.stream import StreamReader


async def open_directory(address: str) -> Services:
    """A connector whose address is a data directory: a whole store runs in this process."""
    async with AsyncExitStack() as stack:
        settings = EmbeddedSettings(data=Path(address), retention_cycle_ms=3_600_000)
        runtime = await stack.enter_async_context(open_runtime(settings))
        return Services(runtime.controller, runtime.segments, stack.pop_all().aclose)


class Query(Driver):
    """A query on a store of ``open_directory``."""

    def __init__(self, data: Path, stream: StreamName, **options: str) -> None:
        given = {"controller": str(data), "path": str(stream), "start_stream_cut": "earliest", **options}
        self.reader = StreamReader(open_directory, parse_read({k: v for k, v in given.items() if v}), SCHEMA)
        self.log = []


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("penstock.spark.reading.stream.LONG_POLL_S", 0.0)
    try:
        yield tmp_path / "data"
    finally:
        close_links()


@pytest.mark.parametrize("subscriber", ["", "q"])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_checkpoint_past_the_backup_is_refused_however_much_is_written_later(
    data: Path, tmp_path: Path, subscriber: str, fail: str
) -> None:
    world = World(link(open_directory, str(data)))
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 50))
    options = {"subscriber": subscriber, "fail_on_data_loss": fail}
    within = Query(data, stream, **options)
    within.all()
    asyncio.run(take_backup(data, tmp_path / "backup"))
    ahead = Query(data, stream)
    ahead.all()
    world.write(stream, keyed(50, 80))
    ahead.all()
    asyncio.run(restore_backup(tmp_path / "backup", tmp_path / "restored"))
    restored = World(link(open_directory, str(tmp_path / "restored")))
    # Past every offset that the query of the original knew.
    restored.write(stream, keyed(1000, 1400))
    later = Query(tmp_path / "restored", stream, fail_on_data_loss=fail)
    later.log = ahead.log
    with pytest.raises(InvalidCutError):
        later.all()
    goes_on = Query(tmp_path / "restored", stream, **options)
    goes_on.log = within.log
    assert sorted(event for batch in goes_on.all() for event in batch) == sorted(keyed(1000, 1400))
