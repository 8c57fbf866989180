"""A backup of a store with a record that cannot be read: everything else is in it, and it says what cannot be read."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner

import penstock
from penstock.app.cli.main import app
from penstock.app.embedded import open_runtime
from penstock.app.settings import EmbeddedSettings
from penstock.controller import keys
from penstock.ports.data.tables import TablePut


def made(data, key):
    """A store with two streams, and a record that nobody can read."""
    with penstock.open(data) as store:
        for name in ("s/a", "s/b"):
            with store.create_stream(name, create_scope=True).writer() as writer:
                for number in range(50):
                    writer.write(b"%d" % number, key="k")

    async def spoil():
        async with open_runtime(EmbeddedSettings(data=data)) as runtime:
            await runtime.segments.table_update(keys.TABLE, [TablePut(key=key, value=b"garbage")])

    asyncio.run(spoil())


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.mark.parametrize("key", [b"stream/s/b", b"stream/nonsense", b"stream/s/\xff", keys.ERASURE_CHAIN])
def test_one_unreadable_record_keeps_nothing_else_from_being_backed_up_and_restored(tmp_path, key):
    data, backup, restored = (tmp_path / name for name in ("store", "backup", "restored"))
    made(data, key)
    named = key.decode(errors="backslashreplace")
    done = call("backup", "create", backup, "--data", data)
    assert done.exit_code == 7, done.output
    assert named in done.output
    found = call("backup", "verify", backup, "--json")
    assert found.exit_code == 7
    body = json.loads(found.output)
    assert (body["unreadable"], body["damage"], body["sound"]) == ([named], {}, False)
    assert "s/a" in [item["stream"] for item in body["streams"]]
    done = call("restore", backup, "--data", restored)
    assert done.exit_code == 0, done.output
    with penstock.open(restored) as store, store.stream("s/a").reader(until_tail=True) as reader:
        assert [event.data for event in reader] == [b"%d" % number for number in range(50)]
