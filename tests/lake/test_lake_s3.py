"""Tables in a bucket of a real S3 server: commits, the second of two runs, compaction, erasure."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("obstore")
sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

from lake_world import DEFINITION, SCHEMA, cut_at, rows_of, written
from s3_world import SERVERS, S3Server, contents, running

from penstock.model.errors import ConflictError, UnavailableError, UnsupportedError
from penstock.spark.lake.opening import TableAddress, open_table
from penstock.spark.lake.port import Change
from penstock.spark.lake.upkeep import compact, erase

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


def address_in(kind: str, server: S3Server, bucket: str, root: Path) -> TableAddress:
    if kind == "iceberg":
        catalog = {
            "type": "sql",
            "uri": f"sqlite:///{root}/catalog.db",
            "warehouse": f"{bucket}/warehouse",
            "s3.endpoint": server.endpoint,
            "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
            "s3.region": os.environ["AWS_REGION"],
        }
        return TableAddress(format=kind, target="lake.t", catalog=catalog)
    storage = {"aws_endpoint": server.endpoint, "allow_http": "true"}
    return TableAddress(format=kind, target=f"{bucket}/t", storage=storage)


def test_a_table_in_a_bucket_obeys_the_laws(kind: str, server: S3Server, tmp_path: Path) -> None:
    bucket = server.new_bucket()
    address = address_in(kind, server, bucket, tmp_path)
    table, other = open_table(address), open_table(address)
    assert table.state() is None
    try:
        base = table.create(DEFINITION, SCHEMA, cut_at(0))
    except UnsupportedError as error:
        if contents(server, bucket):
            raise
        pytest.skip(f"{server.name} has no conditional writes, and the table was refused: {error}")
    late = written(other, base, rows_of(range(5)))
    state = table.commit(base, Change(cut=cut_at(30), added=written(table, base, rows_of(range(3)))))
    with pytest.raises(ConflictError):
        other.commit(base, Change(cut=cut_at(50), added=late))
    assert other.state() == state
    files = written(table, state, rows_of(range(3, 6), "canary"))
    state = table.commit(state, Change(cut=cut_at(60), added=files))
    assert compact(table, target_bytes=1 << 20).removed == 2
    assert sorted(other.read().column("n").to_pylist()) == list(range(6))
    assert erase(table, "e", {0: [30, 40]}).rows == 2
    assert sorted(other.read().column("n").to_pylist()) == [0, 1, 2, 5]
    data = [name for name in contents(server, bucket) if "penstock-0" in name]
    assert len(data) == len(other.files()) == 1


def test_a_bucket_that_is_not_there_is_a_typed_error(server: S3Server) -> None:
    storage = {"aws_endpoint": server.endpoint, "allow_http": "true"}
    with pytest.raises(UnavailableError):
        open_table(TableAddress(format="parquet", target="s3://no-such-bucket/t", storage=storage)).state()
