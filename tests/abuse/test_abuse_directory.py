"""Directories that a server must not serve: refused with a sentence, and left unchanged. Real processes."""

import asyncio
import contextlib
import hashlib
import os
import subprocess
import sys

import pytest
from crc32c import crc32c

import penstock
from penstock.app.embedded import open_runtime
from penstock.app.settings import EmbeddedSettings
from penstock.client.store import AsyncStore
from penstock.codec.store import wal
from penstock.model.errors import UnavailableError
from penstock.testing.server import ServerProcess

pytestmark = pytest.mark.server
COUNT = 64

NO_PORTS = ["--controller-port", "0", "--store-port", "0", "--http-port", "0"]


def make(data):
    """A closed store whose events are all in tier 2: its log has none of them any more."""

    async def main():
        async with open_runtime(EmbeddedSettings(data=data)) as runtime:
            store = AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng)
            await store.create_stream("s/t", segments=1, create_scope=True)
            async with store.stream("s/t").writer() as writer:
                for _ in range(COUNT):
                    await writer.write(os.urandom(65536), key="k")
            await runtime.segments.flush()

    asyncio.run(main())
    return data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """One store for all tests that leave it as it was."""
    return make(tmp_path_factory.mktemp("made") / "store")


def contents(directory):
    """All that data is in: not who holds the directory, not the count of its openings, not what SQLite moves within itself."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in ("LOCK", "EPOCH", "EPOCH.tmp") and path.parent.name != "metadata"
    }


def refusal(data):
    """What a server says that does not start on the directory."""
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "standalone", "--data", str(data), *NO_PORTS],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode != 0
    assert "Traceback" not in ran.stderr
    return ran.stderr + ran.stdout


@contextlib.contextmanager
def of_a_newer_version(data):
    version = data / "VERSION"
    before = version.read_bytes()
    version.write_text("99\n")
    yield "newer version"
    version.write_bytes(before)


@contextlib.contextmanager
def with_a_log_of_a_newer_version(data):
    at, size = wal.BLOCK_BYTES, wal.FILE_HEADER.size
    first = min(path for path in (data / "wal").iterdir() if path.read_bytes()[at : at + 4] == wal.FILE_MAGIC)
    before = first.read_bytes()
    header = bytearray(before[at : at + size - 4])
    header[4] = 99
    first.write_bytes(before[:at] + header + crc32c(header).to_bytes(4, "big") + before[at + size :])
    yield "newer version"
    first.write_bytes(before)


@pytest.mark.parametrize("spoilt", [of_a_newer_version, with_a_log_of_a_newer_version])
def test_data_of_a_newer_version_is_refused_and_left_alone(data, spoilt):
    with spoilt(data) as words:
        before = contents(data)
        assert words in refusal(data)
        assert contents(data) == before
    with penstock.open(data) as store, store.stream("s/t").reader(until_tail=True) as reader:
        assert len(list(reader)) == COUNT


def test_a_directory_of_somebody_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.odt").write_text("a year of work")
    assert "files of another program" in refusal(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.odt"]


def test_a_second_process_is_told_who_has_the_directory(data):
    with ServerProcess(data) as server:
        said = refusal(data)
        assert "another process uses the data directory" in said
        assert str(server.process.pid) in said
        with penstock.connect(server.address) as store:
            assert [str(name) for name in store.streams("s")] == ["t"]


def test_a_chunk_that_vanished_is_told_to_its_reader_and_nothing_else_suffers(tmp_path):
    data = make(tmp_path / "store")
    for chunk in (data / "chunks").rglob("*"):
        if chunk.is_file():
            chunk.unlink()
    with ServerProcess(data) as server, penstock.connect(server.address) as store:
        stream = store.stream("s/t")
        with (
            pytest.raises(penstock.PenstockError, match=r"chunk|damaged|missing"),
            stream.reader(until_tail=True) as reader,
        ):
            list(reader)
        with stream.writer() as writer:
            writer.write(b"on it goes", key="k")
        assert "missing" in server.log.read_text() or "damaged" in server.log.read_text()


def test_a_server_that_finds_its_port_taken_says_which(data, tmp_path):
    with ServerProcess(data) as server:
        other = ServerProcess(tmp_path / "other")
        other.store_port = server.store_port
        with pytest.raises(UnavailableError) as caught:
            other.start()
        assert "address is taken" in caught.value.fields["log"]
        assert str(server.store_port) in caught.value.fields["log"]
