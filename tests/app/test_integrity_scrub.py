"""Scrub and doctor: each kind of damage is found and reported with its place and range; nothing is changed."""

import asyncio
import json
import random
import shutil
import sqlite3
from fnmatch import fnmatch
from pathlib import Path

import pytest
from integrity_world import SEGMENTS, append, block, built, running, snapshot
from typer.testing import CliRunner

from penstock.app.cli.main import app
from penstock.app.integrity.doctor import diagnose
from penstock.app.integrity.offline import open_offline
from penstock.app.integrity.report import ScrubReport, affected, scrub_all
from penstock.model.damage import DamageKind
from penstock.model.errors import DirectoryInUseError, InvalidArgumentError
from penstock.storage.machine.offload import ThreadOffload


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    data = tmp_path_factory.mktemp("pristine") / "store"

    async def behind(runtime) -> None:
        await append(runtime, SEGMENTS[0], block(100))

    built(data, then=behind)
    return data


@pytest.fixture
def data(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "store")
    return tmp_path / "store"


async def _unpaced(_: float) -> None:
    return


def scrubbed(data: Path) -> ScrubReport:
    async def main() -> ScrubReport:
        offload = ThreadOffload()
        try:
            async with open_offline(data, offload=offload) as store:
                scrubber = store.scrubber(offload)
                report = await scrub_all(
                    scrubber.page,
                    rate_bytes=1 << 40,
                    cursor=None,
                    now=lambda: 0.0,
                    pause=_unpaced,
                    on_page=lambda _: None,
                )
                report.damage += [item for item in store.damage if item not in report.damage]
                return report
        finally:
            await offload.close()

    return asyncio.run(main())


def diagnosed(data: Path):
    async def main():
        offload = ThreadOffload()
        try:
            return await diagnose(data, offload=offload)
        finally:
            await offload.close()

    return asyncio.run(main())


def kinds(report) -> set[DamageKind]:
    return {item.kind for item in report.damage}


def flip(path: Path, at: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def largest(data: Path, pattern: str) -> Path:
    return max((path for path in data.rglob(pattern) if path.is_file()), key=lambda path: path.stat().st_size)


def chunk(data: Path) -> Path:
    return max(
        (path for path in (data / "chunks").rglob("*") if path.is_file() and path.suffix != ".idx"),
        key=lambda path: path.stat().st_size,
    )


def test_a_sound_store_is_sound_and_nothing_is_changed(data: Path) -> None:
    files = snapshot(data)
    report = scrubbed(data)
    assert report.damage == []
    for name in ("rows", "frames", "objects", "segments", "chunks", "indexes", "blocks"):
        assert report.checked[name] > 0, name
    found = diagnosed(data)
    assert found.damage == []
    assert found.facts["segments"]["unnamed_chunks"] == 0
    assert found.facts["segments"]["missing_chunks"] == 0
    assert found.facts["segments"]["streams"] >= 9
    assert found.facts["log"]["last"] > 0
    assert snapshot(data) == files


def test_a_flipped_bit_in_a_chunk_is_told_with_its_range(data: Path) -> None:
    victim = chunk(data)
    flip(victim, victim.stat().st_size // 2)
    (found,) = scrubbed(data).damage
    assert found.kind is DamageKind.BLOCK
    assert found.place == f"{victim.parent.name}/{victim.name}"
    (item,) = affected([found])
    assert item["segment"] == found.segment
    assert item["ranges"] == [[found.start, found.end]]
    assert item["stream"].startswith("demo/")


def test_a_chunk_cut_short_missing_or_swapped_is_told(data: Path) -> None:
    victim = chunk(data)
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1])
    assert kinds(scrubbed(data)) == {DamageKind.BLOCK}
    victim.unlink()
    assert kinds(scrubbed(data)) == {DamageKind.CHUNK}
    found = diagnosed(data)
    assert kinds(found) == {DamageKind.CHUNK}
    assert "refuses reads" in found.verdict
    other = next(path for path in victim.parent.iterdir() if path.suffix != ".idx" and path.stat().st_size)
    shutil.copy(other, victim)
    report = scrubbed(data)
    assert report.damage
    assert kinds(report) <= {DamageKind.BLOCK}


def test_sidecars_are_told_and_nothing_is_lost(data: Path) -> None:
    index = chunk(data).with_name(chunk(data).name + ".idx")
    flip(index, 20)
    (found,) = scrubbed(data).damage
    assert (found.kind, found.segment) == (DamageKind.INDEX, None)
    assert found.fields["of_segment"].startswith("demo/")
    index.unlink()
    (found,) = scrubbed(data).damage
    assert "missing" in found.why


def test_the_catalogue_is_told(data: Path) -> None:
    flip(largest(data / "catalogue", "j-*"), 200)
    assert kinds(scrubbed(data)) == {DamageKind.CATALOGUE}
    assert kinds(diagnosed(data)) == {DamageKind.CATALOGUE}
    shutil.rmtree(data / "catalogue/2")
    assert "catalogue/2" in {item.place for item in scrubbed(data).damage}
    # What the advice says: a start without it writes a new one.
    shutil.rmtree(data / "catalogue")

    async def open_again() -> None:
        async with running(data) as runtime:
            await runtime.segments.flush()

    asyncio.run(open_again())
    assert scrubbed(data).damage == []
    assert diagnosed(data).damage == []


def test_every_missing_object_of_the_catalogue_is_told_by_its_name(data: Path) -> None:
    objects = sorted(path for path in (data / "catalogue").rglob("*-*"))
    assert {path.name[0] for path in objects} == {"j", "s"}
    for path in objects:
        whole = path.read_bytes()
        path.unlink()
        for report in (scrubbed(data), diagnosed(data)):
            (found,) = report.damage
            assert found.kind is DamageKind.CATALOGUE
            assert found.container == int(path.parent.name, 16)
            if path.name[0] == "j":
                assert fnmatch(f"catalogue/{path.parent.name}/{path.name}", found.place)
                assert "missing" in found.why
            else:
                assert "no snapshot" in found.why or "no sound snapshot" in found.why
            assert "catalogue" in "".join(report.as_json()["advice"])
        path.write_bytes(whole)
    assert scrubbed(data).damage == diagnosed(data).damage == []


def test_durable_frames_of_the_log_are_told(data: Path) -> None:
    used = next(path for path in sorted((data / "wal").glob("*.log")) if path.read_bytes()[512:516] == b"PsWL")
    flip(used, 1024 + 100)
    report = scrubbed(data)
    assert kinds(report) == {DamageKind.LOG}
    assert diagnosed(data).verdict.startswith("a store would not start")
    (data / "wal/EPOCH").write_bytes(b"\0" * 512)
    assert "EPOCH" in scrubbed(data).damage[0].why


def test_a_missing_or_foreign_metadata_file_is_told(data: Path) -> None:
    path = data / "metadata/store.db"
    whole = path.read_bytes()
    path.write_bytes(b"X" * 100 + whole[100:])
    report = scrubbed(data)
    assert kinds(report) == {DamageKind.PAGE}
    assert kinds(diagnosed(data)) == {DamageKind.PAGE}
    path.unlink()
    found = diagnosed(data)
    assert "rebuilt from tier 2" in found.verdict
    assert kinds(found) == {DamageKind.PAGE}


def test_a_row_that_fails_names_its_segment(data: Path) -> None:
    connection = sqlite3.connect(data / "metadata/store.db")
    key, value = connection.execute("SELECT key, value FROM kv WHERE key >= x'6b' AND key < x'6c'").fetchone()
    connection.execute("UPDATE kv SET value = ? WHERE key = ?", (value[:-1] + bytes([value[-1] ^ 1]), key))
    connection.commit()
    connection.close()
    report = scrubbed(data)
    (found,) = [item for item in report.damage if item.kind is DamageKind.ROW]
    assert found.fields["row"] == "k"
    assert "/" in found.fields["of_segment"]
    # All other segments were verified nevertheless.
    assert report.checked["blocks"] > 5


def rows_of(path: Path) -> dict[bytes, bytes]:
    connection = sqlite3.connect(path)
    try:
        return dict(connection.execute("SELECT key, value FROM kv ORDER BY key").fetchall())
    finally:
        connection.close()


def test_any_flipped_bit_in_the_metadata_file_is_found_or_harmless(data: Path, tmp_path: Path) -> None:
    path = data / "metadata/store.db"
    connection = sqlite3.connect(path)
    connection.execute("VACUUM")
    connection.close()
    whole, rows = path.read_bytes(), rows_of(path)
    rng = random.Random(7)
    silent = []
    for _ in range(20):
        at = rng.randrange(len(whole))
        changed = bytearray(whole)
        changed[at] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        for name in ("store.db-wal", "store.db-shm"):
            (path.parent / name).unlink(missing_ok=True)
        report = diagnosed(data)
        if not report.damage:
            scratch = tmp_path / "copy.db"
            scratch.write_bytes(changed)
            if rows_of(scratch) != rows:
                silent.append(at)
    assert silent == []


def test_any_flipped_bit_in_tier_2_is_found_or_harmless(data: Path) -> None:
    rng = random.Random(11)
    files = [path for top in ("chunks", "catalogue") for path in sorted((data / top).rglob("*")) if path.is_file()]
    holes = {path.name for path in files if path.stat().st_blocks * 512 < path.stat().st_size - 4096}
    for _ in range(15):
        path = rng.choice([item for item in files if item.stat().st_size and item.name not in holes])
        whole = path.read_bytes()
        flip(path, rng.randrange(len(whole)), rng.randrange(8))
        assert scrubbed(data).damage, path
        path.write_bytes(whole)
    assert scrubbed(data).damage == []


def test_pages_of_any_size_say_the_same(data: Path) -> None:
    flip(chunk(data), chunk(data).stat().st_size // 2)

    async def main(size: int) -> ScrubReport:
        offload = ThreadOffload()
        report = ScrubReport()
        try:
            async with open_offline(data, offload=offload) as store:
                while True:
                    report.take(await store.scrubber(offload).page(report.cursor, size))
                    if report.cursor is None:
                        return report
        finally:
            await offload.close()

    small, large = asyncio.run(main(1)), asyncio.run(main(1 << 30))
    assert small.damage == large.damage != []
    assert small.checked == large.checked


def test_a_cursor_that_is_none_is_refused(data: Path) -> None:
    async def main(cursor: str) -> None:
        offload = ThreadOffload()
        try:
            async with open_offline(data, offload=offload) as store:
                await store.scrubber(offload).page(cursor, 1)
        finally:
            await offload.close()

    for cursor in ("", "rows", "rows:0-0-0:", "other:0-0-0-0:", "rows:0-0-0-0:xy"):
        with pytest.raises(InvalidArgumentError):
            asyncio.run(main(cursor))


def test_a_scrub_keeps_to_its_rate() -> None:
    from penstock.ports.integrity import ScrubPage

    clock = [0.0]
    pages = iter(
        [ScrubPage(cursor=str(number), checked={"bytes": 1000}) for number in range(9)] + [ScrubPage(cursor=None)]
    )

    async def page(cursor, size):
        clock[0] += 0.001
        return next(pages)

    async def pause(seconds: float) -> None:
        clock[0] += seconds

    asyncio.run(
        scrub_all(page, rate_bytes=1000, cursor=None, now=lambda: clock[0], pause=pause, on_page=lambda _: None)
    )
    assert 8.9 <= clock[0] <= 9.1


def test_a_running_store_is_scrubbed_beside_writers_and_retention(tmp_path: Path) -> None:
    async def main() -> ScrubReport:
        async with running(tmp_path / "store") as runtime:
            from integrity_world import fill

            await fill(runtime)
            done = asyncio.Event()

            async def write() -> None:
                number = 0
                while not done.is_set():
                    for segment in SEGMENTS:
                        await append(runtime, segment, block(number))
                    number += 1
                    if number % 5 == 0:
                        info = await runtime.segments.info(SEGMENTS[0])
                        await runtime.segments.truncate(SEGMENTS[0], max(info.start_offset, info.length - 2997 * 5))
                        await runtime.segments.flush()

            report = ScrubReport()
            async with asyncio.TaskGroup() as group:
                group.create_task(write())
                for _ in range(3):
                    while True:
                        report.take(await runtime.segments.scrub(report.cursor, 1 << 14))
                        if report.cursor is None:
                            break
                done.set()
            return report

    report = asyncio.run(main())
    assert report.damage == []
    assert report.checked["blocks"] > 10
    assert report.checked["frames"] > 10


def test_a_running_store_tells_damage_and_reads_around_it_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "store") as runtime:
            from integrity_world import fill

            await fill(runtime)
            await runtime.segments.flush()
            victim = chunk(tmp_path / "store")
            flip(victim, victim.stat().st_size // 2)
            report = ScrubReport()
            while True:
                report.take(await runtime.segments.scrub(report.cursor, 1 << 20))
                if report.cursor is None:
                    break
            (found,) = report.damage
            assert found.kind is DamageKind.BLOCK
            assert (runtime.segments.offline, victim.exists()) == (None, True)

    asyncio.run(main())


def test_the_commands_and_their_statuses(data: Path) -> None:
    def call(*arguments: str):
        result = CliRunner().invoke(app, [*arguments], catch_exceptions=True)
        return result.exit_code, result.output

    status, output = call("scrub", "--data", str(data), "--json")
    assert (status, json.loads(output)["sound"]) == (0, True)
    status, output = call("doctor", "--data", str(data), "--json")
    assert (status, json.loads(output)["damage"]) == (0, [])
    status, output = call("wal", "inspect", "--data", str(data), "--json", "--operations")
    frames = [json.loads(line) for line in output.splitlines()]
    assert status == 0
    assert all(frame["sound"] for frame in frames)
    assert {item["kind"] for frame in frames for item in frame["operations"]} >= {"append"}
    status, output = call("chunk", "inspect", "--source", str(data), "--json")
    blocks = [json.loads(line) for line in output.splitlines()]
    assert status == 0
    assert {item["state"] for item in blocks} <= {"ok", "given back"}
    assert any((item["segment"] or "").startswith("demo/") for item in blocks)
    victim = chunk(data)
    name = f"{victim.parent.name}/{victim.name}"
    # Its head may be dead: nobody reads that, and damage there is none.
    flip(victim, victim.stat().st_size // 2)
    status, output = call("scrub", "--data", str(data))
    assert status == 7
    assert "fails its checksum" in output
    assert "what to do" in output
    status, output = call("chunk", "inspect", name, "--source", str(data))
    assert status == 7
    assert "FAILS" in output
    status, output = call("doctor", "--data", str(data))
    assert (status, "no damage was found" in output) == (0, True)
    new = data.with_name("new")
    status, output = call("rebuild", "--source", str(data), "--data", str(new))
    assert status == 7
    assert "what cannot be known" in output
    (data / "metadata/store.db").unlink()
    status, output = call("doctor", "--data", str(data))
    assert status == 7
    assert "would not start" in output


def test_a_directory_that_is_in_use_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "store"):
            offload = ThreadOffload()
            try:
                with pytest.raises(DirectoryInUseError, match="another process"):
                    async with open_offline(tmp_path / "store", offload=offload):
                        raise AssertionError
            finally:
                await offload.close()

    asyncio.run(main())


def test_a_store_does_not_start_on_a_directory_that_is_looked_at(data: Path) -> None:
    async def main() -> None:
        offload = ThreadOffload()
        try:
            async with open_offline(data, offload=offload):
                with pytest.raises(DirectoryInUseError):
                    async with running(data):
                        raise AssertionError
        finally:
            await offload.close()

    asyncio.run(main())


@pytest.mark.parametrize("which", ["first", "middle", "last", "all"])
def test_missing_rows_of_chunks_are_found_with_their_range(data: Path, which: str) -> None:
    name = "demo/other-0/0.#epoch.0"

    async def write() -> int:
        async with running(data) as runtime:
            for number in range(90):
                await append(runtime, name, block(number))
                if number % 30 == 29:
                    await runtime.segments.flush()
            return (await runtime.segments.info(name)).length

    length = asyncio.run(write())
    assert scrubbed(data).damage == []
    connection = sqlite3.connect(data / "metadata/store.db")
    segments: dict[bytes, list[bytes]] = {}
    for (key,) in connection.execute("SELECT key FROM kv WHERE key >= x'6b' AND key < x'6c' ORDER BY key"):
        segments.setdefault(key[:-8], []).append(key)
    prefix, rows = max(segments.items(), key=lambda item: len(item[1]))
    assert len(rows) > 2
    chosen = {"first": slice(0, 1), "middle": slice(1, 2), "last": slice(len(rows) - 1, None), "all": slice(None)}[
        which
    ]
    connection.executemany("DELETE FROM kv WHERE key = ?", [(key,) for key in rows[chosen]])
    connection.commit()
    connection.close()
    bounds = [*(int.from_bytes(key[-8:], "big") for key in rows), length]
    (found,) = scrubbed(data).damage
    assert (found.kind, found.segment, found.place) == (DamageKind.ROW, name, prefix.hex())
    assert (found.start, found.end) == (
        bounds[chosen.start or 0],
        bounds[len(rows) if chosen.stop is None else chosen.stop],
    )
    assert diagnosed(data).damage == [found]


def test_no_row_of_a_chunk_is_missed_while_a_store_writes_truncates_and_merges(data: Path) -> None:
    """What is committed belongs together; what has changed since is not looked at."""
    name = "demo/other-1/0.#epoch.0"

    async def main() -> list[str]:
        async with running(data) as runtime:
            found: list[str] = []
            for number in range(60):
                await append(runtime, name, block(number))
                if number % 9 == 8:
                    await runtime.segments.flush()
                if number % 7 == 6:
                    await runtime.segments.truncate(name, 2997 * (number - 5))
                if number % 4 == 3:
                    cursor = None
                    while True:
                        page = await runtime.segments.scrub(cursor, 1 << 20)
                        found += [f"{item.why} {item.start} {item.end}" for item in page.damage]
                        cursor = page.cursor
                        if cursor is None:
                            break
            return found

    assert asyncio.run(main()) == []
