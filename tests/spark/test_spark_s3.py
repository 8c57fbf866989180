"""Spark and a store whose tier 2 is a bucket: tasks write there and the store adopts, executors read there by themselves, an
erasure reaches it all, and the bucket alone gives it back."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore")
sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

from s3_world import SERVERS, S3Server, contents, running
from spark_world import spark_in

import penstock
from penstock.app.integrity.rebuild import rebuild
from penstock.codec.store.chunk_index import SUFFIX
from penstock.codec.wire.commands import FlushToStorage, StorageFlushed
from penstock.core.segments.garbage import is_marker, parse_import_name
from penstock.testing.server import ServerProcess
from tests.abuse.peers import Peer

COUNT = 8000

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, S3Server]]:
    """Those that are here, running while the one session of Spark is: its processes have their credentials."""
    with ExitStack() as stack:
        found = {}
        for name in SERVERS:
            try:
                found[name] = stack.enter_context(running(name, tmp_path_factory.mktemp(name)))
            except pytest.skip.Exception:
                continue
        if not found:
            pytest.skip("S3 servers are set up by: make test-s3")
        yield found


@pytest.fixture(scope="module")
def spark(servers: dict[str, S3Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with spark_in(tmp_path_factory.mktemp("spark")) as session:
        yield session


def adopted(objects: dict[str, bytes]) -> list[str]:
    chunks = [name.removeprefix("chunks/") for name in objects if name.startswith("chunks/")]
    return [n for n in chunks if parse_import_name(n) is not None and not is_marker(n) and not n.endswith(SUFFIX)]


def events() -> list[bytes]:
    return [
        json.dumps({"user": f"ann-{number % 97:04}", "number": number, "text": "t" * (number % 300)}).encode()
        for number in range(COUNT)
    ]


def read(spark: Any, address: str, **options: str) -> list[bytes]:
    given = {"controller": address, "scope": "plant", "stream": "turbine", **options}
    return sorted(bytes(row.event) for row in spark.read.format("penstock").options(**given).load().collect())


def write(spark: Any, where: dict[str, str], rows: list[bytes]) -> None:
    frame = spark.createDataFrame(
        [(row, str(n % 30)) for n, row in enumerate(rows)], "event binary, routing_key string"
    )
    frame.repartition(2).write.format("penstock").options(**where).mode("append").save()


@pytest.mark.parametrize("name", SERVERS)
def test_spark_writes_and_reads_a_bucket_by_itself_and_it_all_can_be_erased_and_rebuilt(
    spark: Any, servers: dict[str, S3Server], tmp_path: Path, name: str
) -> None:
    if name not in servers:
        pytest.skip(f"{name} is set up by: make test-s3")
    server = servers[name]
    url = server.new_bucket()
    options = ("--tier2", url, "--s3-endpoint", server.endpoint, "--tier2-unit", "1MiB", "--tier2-wait", "200ms")
    with ServerProcess(tmp_path / "data", *options) as process:
        with penstock.connect(process.address) as store:
            store.create_stream("plant/turbine", segments=2, create_scope=True)
        where = {"controller": process.address, "scope": "plant", "stream": "turbine"}
        write(spark, where, events())
        assert len(adopted(contents(server, url))) >= 2, "tasks did not write to the bucket"
        # Nobody but the bucket is asked.
        assert read(spark, process.address, direct="always") == sorted(events())
        assert read(spark, process.address, direct="false") == sorted(events())
        with penstock.connect(process.address) as store:
            stream = store.stream("plant/turbine")
            with stream.reader(until_tail=True) as reader:
                hits = [event for event in reader if b"ann-0013" in event.data]
            stream.erase(hits, who="ann", why="request 17", erasure="e")
            found = stream.erasures.verify("e")
            assert found.holds, found.problems
            kept = sorted(event for event in events() if b"ann-0013" not in event)
            assert [n for n, data in contents(server, url).items() if b"ann-0013" in data] == []
            assert read(spark, process.address, direct="always") == kept
        # Chunks of the first batch were written anew; those of this one are as the tasks left them.
        late = [b"late %d " % number + b"t" * (number % 300) for number in range(COUNT)]
        write(spark, where, late)
        kept = sorted([*kept, *late])
        assert read(spark, process.address, direct="always") == kept
        with Peer(process.store_port, timeout_s=60) as peer:
            assert peer.ask(FlushToStorage(0, "", 1)) == StorageFlushed(1)
        process.kill()
    before = contents(server, url)
    assert adopted(before)
    report = asyncio.run(rebuild(url, tmp_path / "new", endpoint=server.endpoint))
    assert (report.lost, report.damage) == ([], [])
    assert contents(server, url) == before, "a rebuild changes nothing"
    with penstock.open(tmp_path / "new") as store:
        stream = store.stream("plant/turbine")
        with stream.reader(until_tail=True) as reader:
            assert sorted(event.data for event in reader) == kept
        found = stream.erasures.verify("e")
        assert found.holds, found.problems
