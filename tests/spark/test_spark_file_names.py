"""Names of files are taken as they are: none is left out, none is read for another, in load, export and table."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from job_world import source_options
from spark_world import World, keyed

from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.spark.jobs.export.job import ExportRequest, export
from penstock.spark.jobs.load import InputFile, LoadRequest, digest_of, load
from penstock.spark.jobs.table import TableRequest, read_table, update_table
from penstock.spark.jobs.table_files import TableDirectory

pytestmark = pytest.mark.spark

NAMES = [
    "data1.json",
    "data[1].json",
    "data[12].json",
    "data2.json",
    "a{b,c}.json",
    "ab.json",
    "star*.json",
    "stark.json",
    "what?.json",
    "whata.json",
    "back\\[1].json",
    "two words.json",
    "100%.json",
    "%41.json",
    "A.json",
    "a+b.json",
    "c,d.json",
    "#hash.json",
    "é.json",
    "'q\".json",
    "new\nline.json",
]


def stored(spark: Any, address: str, stream: StreamName) -> Counter[str]:
    rows = spark.read.format("penstock").options(**source_options(address, stream)).load().collect()
    return Counter(bytes(row.event).decode() for row in rows)


def made(directory: Path, names: list[str]) -> Counter[str]:
    directory.mkdir(parents=True)
    wanted: Counter[str] = Counter()
    for number, name in enumerate(names):
        (directory / name).write_text("".join(f'{{"id": "{number}-{line}"}}\n' for line in range(3)))
        wanted.update(f"{number}-{line}" for line in range(3))
    return wanted


def loading(address: str, stream: StreamName, *paths: Path, **more: Any) -> LoadRequest:
    write = source_options(address, stream)
    given = {"format": "json", "event": "id", **more}
    return LoadRequest(paths=tuple(map(str, paths)), write=write, **given)


@pytest.mark.parametrize("part_bytes", [pytest.param(size, marks=pytest.mark.slow) for size in (1 << 30, 100)])
def test_a_directory_of_strange_names_is_loaded_once(
    spark: Any, address: str, world: World, tmp_path: Path, part_bytes: int
) -> None:
    stream = StreamName("names", f"dir{part_bytes}")
    source = tmp_path / "in [a]{b}*"
    wanted = made(source, NAMES)
    request = loading(address, stream, source, part_bytes=part_bytes)
    done = load(spark, request)
    assert (done.files, done.events) == (len(NAMES), len(NAMES) * 3)
    assert stored(spark, address, stream) == wanted
    # Each of them counts: changed, it is other input.
    for name in ("data[1].json", "%41.json"):
        (source / name).write_text('{"id": "changed"}\n')
        assert load(spark, request, dry_run=True).load != done.load


@pytest.mark.slow
def test_given_paths_are_not_patterns(spark: Any, address: str, world: World, tmp_path: Path) -> None:
    made(tmp_path / "in", NAMES)
    rng = random.Random(5)
    for turn in range(3):
        stream = StreamName("names", f"given{turn}")
        chosen = rng.sample(range(len(NAMES)), 4)
        done = load(spark, loading(address, stream, *(tmp_path / "in" / NAMES[number] for number in chosen)))
        assert done.files == 4
        assert stored(spark, address, stream) == Counter(f"{number}-{line}" for number in chosen for line in range(3))


def test_names_that_spark_skips_are_refused() -> None:
    for name in ("_a.json", "in/.hidden.json", "in/_b/"):
        with pytest.raises(InvalidArgumentError):
            LoadRequest(paths=(name,), write={}, format="json").checked()
    for name in (".", "in/..", "in/_year=2024"):
        LoadRequest(paths=(name,), write={}, format="json").checked()


@pytest.mark.slow
def test_files_of_equal_names_sizes_and_times_in_two_directories_are_two_inputs(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = StreamName("names", "twins")
    for day in ("1", "2"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "part.json").write_text(f'{{"id": "day{day}"}}\n')
        os.utime(tmp_path / day / "part.json", (1_700_000_000, 1_700_000_000))
        assert load(spark, loading(address, stream, tmp_path / day)).events == 1
        assert load(spark, loading(address, stream, tmp_path / day)).skipped == 1
    assert stored(spark, address, stream) == Counter(["day1", "day2"])
    # Mounted elsewhere, and said so: the same input.
    rooted = loading(address, stream, tmp_path / "1" / "part.json", root=str(tmp_path / "1"))
    first = load(spark, rooted)
    os.rename(tmp_path / "1", tmp_path / "mount")
    again = replace(rooted, paths=(str(tmp_path / "mount"),), root=str(tmp_path / "mount"))
    assert load(spark, again).load == first.load
    with pytest.raises(InvalidArgumentError):
        load(spark, replace(again, root=str(tmp_path / "2")))


def test_the_digest_distinguishes_any_two_directories() -> None:
    request = LoadRequest(paths=("x",), write={})
    places = ["file:/a/x", "file:/b/x", "file:/a/b/x", "s3a://a/x", "file:/a/x/x"]
    digests = [digest_of([InputFile(place, 1, 1)], request, "json") for place in places]
    assert len(set(digests)) == len(places)


@pytest.mark.slow
def test_an_export_to_a_strange_directory_loads_back(spark: Any, address: str, world: World, tmp_path: Path) -> None:
    stream = world.create("strange", 1)
    world.write(stream, keyed(0, 20))
    target = tmp_path / "out [1]{a}%41 *"
    export(spark, ExportRequest(read=source_options(address, stream), output=target))
    back = StreamName("names", "back")
    report = load(spark, loading(address, back, target, format="parquet", event=None))
    assert report.events == 20
    assert stored(spark, address, back) == stored(spark, address, stream)


@pytest.mark.parametrize("place", ["t [1]", "t{a}*%41"])
@pytest.mark.slow
def test_a_table_with_names_that_need_quoting_is_read_and_updated(
    spark: Any, address: str, world: World, tmp_path: Path, place: str
) -> None:
    stream = world.create("quoted" + str(len(place)), 1)
    schema = "k STRING, `a-b` STRUCT<`x y`: INT, `p.q`: STRING, `t``ick`: ARRAY<STRUCT<`1`: INT>>>, `c``d` INT"
    request = TableRequest(
        read=source_options(address, stream),
        directory=tmp_path / place,
        key="k",
        schema=schema,
        subscriber=f"quoted-table-{len(place)}",
        buckets=2,
    )

    def event(key: str, number: int) -> bytes:
        inner = {"x y": number, "p.q": "v", "t`ick": [{"1": number}]}
        return json.dumps({"k": key, "a-b": inner, "c`d": number}).encode()

    world.write(stream, [event(f"k{number}", number) for number in range(8)])
    update_table(spark, request)
    world.write(stream, [event("k3", 33)])
    update_table(spark, request)
    found = {row["key"]: row for row in read_table(spark, tmp_path / place).collect()}
    assert {key: row["a-b"]["x y"] for key, row in found.items()} == {f"k{n}": 33 if n == 3 else n for n in range(8)}
    assert found["k3"]["a-b"]["t`ick"][0]["1"] == found["k3"]["c`d"] == 33
    # As an earlier version wrote it.
    directory = TableDirectory(tmp_path / place)
    file = directory.current / "_penstock" / "table.json"
    record = json.loads(file.read_bytes())
    assert json.loads(record["schema"])["type"] == "struct"
    record["schema"] = f"`key` string, {schema.removeprefix('k STRING, ')}, `segment_id` bigint, `offset` bigint"
    file.write_text(json.dumps(record))
    assert {row["key"] for row in read_table(spark, tmp_path / place).collect()} == set(found)


def test_a_file_that_does_not_lie_below_the_root_is_refused() -> None:
    request = LoadRequest(paths=("x",), write={"controller": "x", "stream": "s"}, root="/data")

    def digest(place: str, root: str) -> str:
        return digest_of([InputFile(place, 1, 1)], replace(request, root=root), "json")

    below = {digest(f"{scheme}/data/x", root) for scheme in ("", "file:", "file://") for root in ("/data", "/data/")}
    assert below == {digest("file:/data/x", "file:/data"), digest("file:/data/x", "file:///data")}
    assert digest("s3://lake/data/x", "s3://lake/data") in below
    for place in ("file:/mnt/mon/data/x", "/mnt/tue/data/x", "file:/database/x", "s3://lake/data/x", "hdfs:/data/x"):
        with pytest.raises(InvalidArgumentError, match="below the root"):
            digest(place, "/data")
    with pytest.raises(InvalidArgumentError, match="below the root"):
        digest("s3://copy/s3://lake/data/x", "s3://lake/data")
