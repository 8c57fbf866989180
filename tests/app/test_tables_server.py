"""Tables and streams of bytes over the network, on a server with workers that is killed and started again."""

from __future__ import annotations

import io
import random
import threading
from pathlib import Path

import pytest

import penstock
from penstock.model.errors import (
    BadKeyVersionError,
    EventTooLargeError,
    InvalidArgumentError,
    KeyNotFoundError,
    TableNotFoundError,
)
from penstock.testing.server import ServerProcess

pytestmark = pytest.mark.server

# One test of several seconds, because a server with workers is started twice and holds more than one frame.


@pytest.mark.slow
def test_tables_and_bytes_of_a_server_with_workers_outlive_its_death(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--workers", "2") as server, penstock.connect(server.address) as store:
        table = store.create_table("a/t", primary_key_bytes=4, secondary_key_bytes=1, partitions=5, create_scope=True)
        store.create_stream("a/b")
        _check_errors(store, table)
        large = random.Random(1).randbytes(1_000_000)
        # More than one frame of the protocol carries.
        for number in range(20):
            table.insert((b"big%d" % (number % 4), bytes([number])), large)
        file = store.byte_stream("a/b")
        for number in range(5):
            file.write(b"%d" % number + large)
        file.flush()
        _count_together(store, server)
        server.kill()
        server.start()
        assert len(table.get_many([(b"big%d" % (number % 4), bytes([number])) for number in range(20)])) == 20
        found = list(table.scan(first="big0", last="big3"))
        assert [entry.key for entry in found] == sorted((b"big%d" % (n % 4), bytes([n])) for n in range(20))
        assert {entry.value for entry in found} == {large}
        assert table.get(("coun", "t")).value == b"40"
        file.seek(0)
        assert file.read() == b"".join(b"%d" % number + large for number in range(5))
        assert file.seek(-1, io.SEEK_END) == 5 * len(large) + 4
        file.write(b"after")
        assert file.read(9) == large[-1:] + b"after"
        table.delete()
        with pytest.raises(TableNotFoundError):
            list(table.scan())


def _check_errors(store: penstock.Store, table: penstock.Table) -> None:
    version = table.insert(("aaaa", "0"), b"v")
    with pytest.raises(BadKeyVersionError):
        table.insert(("aaaa", "0"), b"v")
    with pytest.raises(BadKeyVersionError):
        table.remove(("aaaa", "0"), version + 1)
    with pytest.raises(KeyNotFoundError):
        table.replace(("aaaa", "1"), b"v", version)
    with pytest.raises(InvalidArgumentError):
        table.get("aaaa")
    with pytest.raises(EventTooLargeError):
        table.update([penstock.Put(("aaaa", bytes([n])), bytes(1 << 20)) for n in range(2)])
    table.update([penstock.Put(("aaaa", bytes([n])), bytes(65_400)) for n in range(256)])
    table.remove_many([penstock.Remove(("aaaa", bytes([n]))) for n in range(256)])
    assert list(table.scan()) == []
    with pytest.raises(TableNotFoundError):
        store.table("a/none").get("aaaa")


def _count_together(store: penstock.Store, server: ServerProcess) -> None:
    def count(table: penstock.Table) -> None:
        for _ in range(20):
            while True:
                entry = table.get(("coun", "t"))
                try:
                    if entry is None:
                        table.insert(("coun", "t"), b"1")
                    else:
                        table.replace(entry.key, b"%d" % (int(entry.value) + 1), entry.version)
                    break
                except BadKeyVersionError:
                    continue

    with penstock.connect(server.address) as other:
        threads = [threading.Thread(target=count, args=(one.table("a/t"),)) for one in (store, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
