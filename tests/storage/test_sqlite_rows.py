"""A damaged key hides its row: such a file is refused before any caller gets the answer that something is not there."""

import asyncio
import sqlite3
import time
from pathlib import Path

import pytest
from crc32c import crc32c

from penstock.model.errors import CorruptDataError
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue
from penstock.storage.rows.sqlite_rows import _value_explains

ROWS = [(b"stream/%04d" % number, b"row number %d, and some more" % number) for number in range(300)]


def made(path: Path) -> bytes:
    async def make() -> None:
        async with ThreadOffload() as offload:
            store = await SqliteKeyValue.open(path, offload)
            await store.commit(ROWS)
            await store.close()

    asyncio.run(make())
    return path.read_bytes()


def read_all(path: Path) -> list[bytes | None]:
    async def read() -> list[bytes | None]:
        async with ThreadOffload() as offload:
            store = await SqliteKeyValue.open(path, offload)
            try:
                return list(await store.get_many([key for key, _ in ROWS]))
            finally:
                await store.close()

    return asyncio.run(read())


def flipped(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes((data[place] ^ 1 << bit,)) + data[place + 1 :]


@pytest.mark.parametrize("bit", range(8))
def test_a_key_in_which_a_bit_has_rotted_is_not_told_to_be_absent(tmp_path: Path, bit: int) -> None:
    path = tmp_path / "store.db"
    data = made(path)
    # The last byte of a key: whatever bit it is, the rows are still in order, or SQLite itself sees that they are not.
    place = data.index(b"stream/0123") + 10
    path.write_bytes(flipped(data, place, bit))
    with pytest.raises(CorruptDataError):
        read_all(path)
    path.write_bytes(data)
    assert read_all(path) == [value for _, value in ROWS]


def test_a_value_in_which_a_bit_has_rotted_costs_that_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    data = made(path)
    path.write_bytes(flipped(data, data.index(b"row number 123,") + 4, 3))

    async def look() -> None:
        async with ThreadOffload() as offload:
            store = await SqliteKeyValue.open(path, offload)
            assert await store.get_many([b"stream/0122"]) == [b"row number 122, and some more"]
            with pytest.raises(CorruptDataError):
                await store.get_many([b"stream/0123"])
            await store.close()

    asyncio.run(look())


def test_no_flipped_bit_of_any_page_hides_a_row(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    data = made(path)
    used = [place for place in range(100, len(data)) if data[place]]
    found = refused = 0
    for number, place in enumerate(used[:: max(1, len(used) // 60)]):
        path.write_bytes(flipped(data, place, number % 8))
        for name in ("-wal", "-shm"):
            path.with_name(path.name + name).unlink(missing_ok=True)
        try:
            assert read_all(path) == [value for _, value in ROWS]
            found += 1
        except CorruptDataError:
            refused += 1
    assert refused > found > 0


def test_what_is_left_of_an_interrupted_start_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    made(path)
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO kv VALUES (?, zeroblob(5000))", (b"\xff" * 16,))
    connection.commit()
    connection.close()
    assert read_all(path)[0] == ROWS[0][1]


def test_a_flipped_bit_of_a_value_is_distinguished_from_one_of_its_key() -> None:
    key, value = b"stream/0123", bytes(range(200))
    sealed = crc32c(value, crc32c(key)).to_bytes(4, "big") + value
    for place in range(len(sealed)):
        for bit in range(8):
            assert _value_explains(key, flipped(sealed, place, bit)), (place, bit)
    for place in range(len(key)):
        for bit in range(8):
            assert not _value_explains(flipped(key, place, bit), sealed), (place, bit)


def test_a_flipped_bit_in_a_large_value_does_not_stop_a_start(tmp_path: Path) -> None:
    # Looked for by sums over all that follows it, a bit at the front of two megabytes takes hours.
    key, value = b"j", bytes(2 << 20)
    sealed = crc32c(value, crc32c(key)).to_bytes(4, "big") + value
    began = time.process_time()
    assert _value_explains(key, flipped(sealed, 4, 0))
    assert time.process_time() - began < 20
