"""What was erased is in no object of a bucket, or file of HDFS, any more, and in no file beside it; whatever dies in between."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hdfs_world import ALL_SERVERS, HDFS, HdfsServer, TierServer, all_contents, blocks_with, tier_running

import penstock
from penstock.client.reading.blocks import Event
from penstock.model.errors import ErasureWaitsError, PenstockError
from penstock.testing.server import ServerProcess

SECRET = b"canary-7f3a"
COUNT = 4000

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", params=ALL_SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierServer]:
    with tier_running(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


def objects_with(server: TierServer, url: str, needle: bytes = SECRET) -> list[str]:
    found = all_contents(server, url)
    assert found
    return sorted(name for name, data in found.items() if needle in data)


def files_with(data: Path) -> list[str]:
    return [str(path) for path in data.rglob("*") if path.is_file() and SECRET in path.read_bytes()]


def fill(stream: Any) -> None:
    with stream.writer() as writer:
        for number in range(COUNT):
            text = SECRET if number % 40 == 7 else b"plain"
            writer.write(text + b" %d " % number + b"x" * (number % 700), key=str(number % 30))


def events_of(stream: Any) -> list[Event]:
    with stream.reader(until_tail=True) as reader:
        return sorted(reader, key=lambda event: (event.segment, event.offset))


def hits_of(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.data.startswith(SECRET)]


def until_uploaded(server: TierServer, url: str) -> None:
    deadline = monotonic() + 90
    while not objects_with(server, url):
        assert monotonic() < deadline, "nothing reached tier 2"
        threading.Event().wait(0.1)


def until_freed(server: HdfsServer) -> None:
    """Datanodes delete blocks with their next heartbeats. No trash or snapshot keeps them."""
    deadline = monotonic() + 60
    while blocks_with(server, SECRET):
        assert monotonic() < deadline, "a datanode keeps a block"
        threading.Event().wait(0.5)


@pytest.mark.parametrize("server", [HDFS], indirect=True)
def test_an_erasure_waits_for_the_end_of_a_snapshot(server: HdfsServer, tmp_path: Path) -> None:
    url = server.new_bucket()
    directory = url.removeprefix(server.engine.url)
    with penstock.open(tmp_path / "data", **server.place(url), tier2_wait_ms=100) as store:
        stream = store.create_stream("s/t", segments=1, create_scope=True)
        fill(stream)
        until_uploaded(server, url)
        server.engine.admin("-allowSnapshot", directory)
        server.engine.shell("-createSnapshot", directory, "nightly")
        before = events_of(stream)
        hits = hits_of(before)
        with pytest.raises(ErasureWaitsError, match=r"a snapshot of HDFS.*hdfs dfs -deleteSnapshot"):
            stream.erase(hits, who="ann", why="request 17", erasure="e")
        assert blocks_with(server, SECRET)
        server.engine.shell("-deleteSnapshot", directory, "nightly")
        deadline = monotonic() + 90
        receipt = None
        while receipt is None:
            assert monotonic() < deadline, "the erasure does not continue"
            # The store tries again by itself, after a pause.
            with suppress(ErasureWaitsError):
                receipt = stream.erase(hits, who="ann", why="request 17", erasure="e")
            threading.Event().wait(0.5)
        assert receipt["where"]["events"] == len(hits)
        assert objects_with(server, url) == []
        until_freed(server)
        assert stream.erasures.verify("e").holds


def test_what_was_erased_is_in_no_object_and_in_no_file(server: TierServer, tmp_path: Path) -> None:
    url = server.new_bucket()
    place = {**server.place(url), "tier2_wait_ms": 100, "tier2_unit_bytes": 1 << 20}
    with penstock.open(tmp_path / "data", **place) as store:
        stream = store.create_stream("s/t", segments=2, create_scope=True)
        fill(stream)
        until_uploaded(server, url)
        before = events_of(stream)
        hits = hits_of(before)
        receipt = stream.erase(hits, who="ann", why="request 17", erasure="e")
        assert objects_with(server, url) == []
        assert files_with(tmp_path / "data") == []
        if isinstance(server, HdfsServer):
            until_freed(server)
        assert receipt["where"]["events"] == len(hits) == COUNT // 40
        kept = [event for event in before if event not in set(hits)]
        assert events_of(stream) == kept
        found = stream.erasures.verify("e")
        assert found.holds, found.problems
    with penstock.open(tmp_path / "data", **place) as store:
        stream = store.stream("s/t")
        assert events_of(stream) == kept
        assert stream.erase([], who="ann", why="request 17", erasure="e") == receipt
        # What is left is erased too, and goes with its objects: none of them changes, so each is written anew.
        stream.erase(kept[::100], who="ann", why="request 18", erasure="f")
        assert stream.erasures.verify("e").holds
        assert stream.erasures.verify("f").holds
    assert objects_with(server, url) == []


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_erasure_ends_as_one_that_was_not(server: TierServer, tmp_path: Path, seed: int) -> None:
    url = server.new_bucket()
    options = (*server.options(url), "--tier2-unit", "1MiB", "--tier2-wait", "200ms")
    rng = random.Random(seed)
    with ServerProcess(tmp_path / "data", *options) as process:
        with penstock.connect(process.address) as store:
            stream = store.create_stream("s/t", segments=2, create_scope=True)
            fill(stream)
            until_uploaded(server, url)
            before = events_of(stream)
        hits = hits_of(before)
        for _ in range(3):
            _kill_while_erasing(process, hits, rng.random() ** 2 * 0.8)
        with penstock.connect(process.address) as store:
            stream = store.stream("s/t")
            receipt = stream.erase(hits, who="ann", why="x", erasure="e")
            assert (receipt["sequence"], receipt["where"]["events"]) == (1, len(hits))
            assert objects_with(server, url) == []
            assert files_with(tmp_path / "data") == []
            found = stream.erasures.verify("e")
            assert found.holds, found.problems
            assert events_of(stream) == [event for event in before if event not in set(hits)]


def _kill_while_erasing(process: ServerProcess, hits: Sequence[Event], after_s: float) -> None:
    asked = threading.Event()

    def ask() -> None:
        try:
            with penstock.connect(process.address) as store:
                asked.set()
                store.stream("s/t").erase(hits, who="ann", why="x", erasure="e")
        except PenstockError:
            asked.set()  # Its store is gone: the next store that opens it goes on.

    thread = threading.Thread(target=ask)
    thread.start()
    asked.wait()
    threading.Event().wait(after_s)
    process.kill()
    process.start()
    thread.join()
