"""Backups of running stores: what is in them, what is refused, and what a restored store does with old positions."""

import asyncio
import json
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from integrity_world import SEGMENTS, STREAM, append, block, contents, fill, running
from typer.testing import CliRunner

from penstock.app.backup.manifest import NAME, load_manifest, save_manifest
from penstock.app.backup.restore import restore_backup, verify_backup
from penstock.app.backup.take import take_backup
from penstock.app.cli.main import app
from penstock.app.restored import MARKER
from penstock.client.store import AsyncStore
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    InvalidCutError,
    UnavailableError,
    VersionTooNewError,
)
from penstock.model.names import StreamName
from penstock.storage.machine.holds import hold_chunks, hold_log
from penstock.storage.memory.memory_objects import MemoryObjects

STREAM_T, STREAM_R = StreamName("s", "t"), StreamName("s", "replaced")
_KEYS = [f"key-{number}" for number in range(8)]


def client_of(runtime) -> AsyncStore:
    return AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng)


async def read_all(store: AsyncStore, stream: str, start=None) -> list[str]:
    async with store.stream(stream).reader(start=start, until_tail=True) as reader:
        return [event.data.decode() async for event in reader]


class Load:
    """Writers, transactions, scaling and truncation, all at the same time, until ``stop``."""

    def __init__(self, runtime) -> None:
        self.runtime, self.store = runtime, client_of(runtime)
        self.written = self.acknowledged = self.committed = 0
        self.stopped = False

    async def prepare(self) -> None:
        await self.store.create_stream("s/events", segments=2, create_scope=True)
        await self.store.create_stream("s/cut", segments=2)
        await self.store.create_stream("s/txn", segments=3)

    async def write(self, stream: str) -> None:
        counts = stream == "s/events"
        number = 0
        async with self.store.stream(stream).writer() as writer:
            while not self.stopped:
                for _ in range(10):
                    for key in _KEYS:
                        await writer.write(f"{key}|{number:08}|{'x' * 100}", key=key)
                    number += 1
                if counts:
                    self.written = number
                await writer.flush()
                if counts:
                    self.acknowledged = number
                await asyncio.sleep(0.01)

    async def transact(self) -> None:
        while not self.stopped:
            async with self.store.stream("s/txn").transaction() as txn:
                for part in range(6):
                    await txn.write(f"{self.committed}|{part}", key=str(part))
            self.committed += 1
            await asyncio.sleep(0.005)

    async def scale(self) -> None:
        for number in range(1_000_000):
            if self.stopped:
                return
            await self.store.stream("s/events").scale(2 + number % 3)
            await self.runtime.segments.flush()
            await asyncio.sleep(0.05)

    async def truncate(self) -> None:
        stream = self.store.stream("s/cut")
        while not self.stopped:
            await stream.truncate(await stream.tail())
            await self.runtime.segments.flush()
            await asyncio.sleep(0.02)

    @asynccontextmanager
    async def going(self):
        await self.prepare()
        async with asyncio.TaskGroup() as group:
            for work in (self.write("s/events"), self.write("s/cut"), self.transact(), self.scale(), self.truncate()):
                group.create_task(work)
            while self.acknowledged < 40 or self.committed < 2:
                await asyncio.sleep(0.002)
            try:
                yield
            finally:
                self.stopped = True


def by_key(events: list[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in events:
        key, number, *_ = event.split("|")
        found.setdefault(key, []).append(int(number))
    return found


async def check_restored(data: Path, *, acknowledged: int, written: int, committed: int) -> None:
    async with running(data) as runtime:
        store = client_of(runtime)
        found = by_key(await read_all(store, "s/events"))
        for key in _KEYS:
            assert found[key] == list(range(len(found[key]))), "in order, none missing, none doubled"
            assert acknowledged <= len(found[key]) <= written
        for numbers in by_key(await read_all(store, "s/cut")).values():
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        parts: dict[str, int] = {}
        for event in await read_all(store, "s/txn"):
            number = event.split("|")[0]
            parts[number] = parts.get(number, 0) + 1
        assert set(parts.values()) <= {6}, "a transaction is there whole or not at all"
        assert len(parts) >= committed
        # The store goes on.
        async with store.stream("s/events").writer() as writer:
            await writer.write("more|0|", key="more")
        assert (await read_all(store, "s/events")).count("more|0|") == 1
        await runtime.segments.flush()


def test_a_backup_under_load_holds_all_that_was_acknowledged_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        seen = []
        async with running(tmp_path / "store") as runtime:
            load = Load(runtime)
            async with load.going():
                for number in range(2):
                    before = {"acknowledged": load.acknowledged, "committed": load.committed}
                    await take_backup(tmp_path / "store", tmp_path / f"backup-{number}")
                    seen.append({**before, "written": load.written + 10})
        for number, facts in enumerate(seen):
            manifest, damage = await verify_backup(tmp_path / f"backup-{number}")
            assert not damage
            assert not manifest.missing
            await restore_backup(tmp_path / f"backup-{number}", tmp_path / f"restored-{number}")
            await check_restored(tmp_path / f"restored-{number}", **facts)

    asyncio.run(main())


@pytest.mark.parametrize("tier", ["directory", "bucket"])
def test_everything_comes_back_from_the_backup_of_a_stopped_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str
) -> None:
    """With tier 2 elsewhere the restored store keeps its chunks itself: two stores never share one tier 2."""
    place = str(tmp_path / tier)
    Path(place).mkdir()
    if tier == "bucket":
        place, objects = "s3://bucket/plant", MemoryObjects()
        monkeypatch.setattr("penstock.app.tier2.open_bucket", lambda url, endpoint: objects)

    async def main() -> None:
        async with running(tmp_path / "store", tier2=place) as runtime:
            await fill(runtime)
            expected = await contents(runtime)
        manifest = await take_backup(tmp_path / "store", tmp_path / "backup")
        assert manifest.tier2 == place
        await restore_backup(tmp_path / "backup", tmp_path / "restored")
        async with running(tmp_path / "restored") as runtime:
            found = await contents(runtime)
        assert {name: item[:2] for name, item in found.segments.items()} == {
            name: item[:2] for name, item in expected.segments.items()
        }
        assert (found.table, found.streams, found.head) == (expected.table, expected.streams, expected.head)
        # The original still starts on its own tier 2.
        async with running(tmp_path / "store") as runtime:
            assert (await contents(runtime)).segments == expected.segments

    asyncio.run(main())


def test_a_position_of_the_original_never_means_other_events(tmp_path: Path) -> None:
    """The most dangerous mistake: an offset reached after the backup, given to another event after the restore."""

    async def main() -> None:
        async with running(tmp_path / "store") as runtime:
            store = client_of(runtime)
            await store.create_stream("s/t", segments=2, create_scope=True)
            await store.create_stream("s/scaled", segments=1)
            await store.create_stream("s/replaced", segments=1)
            for name in ("s/t", "s/scaled", "s/replaced"):
                async with store.stream(name).writer() as writer:
                    await writer.write_many([f"old {number}" for number in range(50)], [str(n) for n in range(50)])
            within = await store.stream("s/t").tail()
            # Sealed streams keep their segments in the restored store. Their names are used again in both.
            await store.create_stream("s/sealed", segments=1)
            await store.stream("s/sealed").seal()
            await take_backup(tmp_path / "store", tmp_path / "backup")
            async with store.stream("s/t").writer() as writer:
                await writer.write_many(["lost"] * 50, [str(n) for n in range(50)])
            ahead = await store.stream("s/t").tail()
            await store.stream("s/scaled").scale(2)
            after_scale = await store.stream("s/scaled").tail()
            # The same scale as that of a restore.
            (old,) = (await store.stream("s/replaced").describe()).segments
            await runtime.controller.layout.scale(STREAM_R, sealed=[old.segment], new_ranges=[old.keys])
            await store.create_stream("s/made-later", segments=1)
            await store.stream("s/sealed").delete()
            await store.create_stream("s/sealed", segments=1)
            for name in ("s/replaced", "s/made-later", "s/sealed"):
                async with store.stream(name).writer() as writer:
                    await writer.write("lost")
            replaced = await store.stream("s/replaced").tail()
            made_later = await store.stream("s/made-later").tail()
            sealed = await store.stream("s/sealed").tail()
        await restore_backup(tmp_path / "backup", tmp_path / "restored")
        async with running(tmp_path / "restored") as runtime:
            store = client_of(runtime)
            await store.create_stream("s/made-later", segments=1)
            await store.stream("s/sealed").delete()
            await store.create_stream("s/sealed", segments=1)
            await store.stream("s/scaled").scale(2)
            for name in ("s/t", "s/scaled", "s/replaced", "s/made-later", "s/sealed"):
                async with store.stream(name).writer() as writer:
                    # Far past every position of the original.
                    await writer.write_many(["new" * 50] * 200, [str(n) for n in range(200)])
            cuts = {"s/t": ahead, "s/scaled": after_scale, "s/replaced": replaced, "s/made-later": made_later}
            cuts["s/sealed"] = sealed
            for name, cut in cuts.items():
                with pytest.raises(InvalidCutError):
                    await read_all(store, name, start=cut)
                with pytest.raises(InvalidCutError):
                    await store.stream(name).truncate(cut)
            # A position that the backup holds goes on with all that was written after the restore.
            assert await read_all(store, "s/t", start=within) == ["new" * 50] * 200
            # A client that connects again in the middle of its work asks for the segment itself.
            for segment, offset in ahead.positions.items():
                with pytest.raises(InvalidArgumentError, match="behind the end of a sealed segment"):
                    await runtime.segments.read(f"s/t/{segment}.#epoch.0", offset, 100, wait=False)

    asyncio.run(main())


def test_open_transactions_of_the_backup_are_aborted(tmp_path: Path) -> None:
    """Committed after the restore they would make segments with numbers that the original may have used."""

    async def main() -> None:
        async with running(tmp_path / "store") as runtime:
            store = client_of(runtime)
            await store.create_stream("s/t", segments=2, create_scope=True)
            txn = await runtime.controller.transactions.create(STREAM_T, lease_ms=600_000)
            await take_backup(tmp_path / "store", tmp_path / "backup")
            await runtime.controller.transactions.abort(STREAM_T, txn.id)
        await restore_backup(tmp_path / "backup", tmp_path / "restored")
        async with running(tmp_path / "restored") as runtime:
            status = await runtime.controller.transactions.status(STREAM_T, txn.id)
            assert status.name in ("ABORTED", "ABORTING")

    asyncio.run(main())


def test_an_interrupted_first_opening_is_repeated(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "store") as runtime:
            await fill(runtime)
        await take_backup(tmp_path / "store", tmp_path / "backup")
        await restore_backup(tmp_path / "backup", tmp_path / "restored")
        assert not (tmp_path / "restored" / MARKER).exists()
        fields = {"format": 1, "backup_ms": 0, "jump": 1 << 20}
        (tmp_path / "restored" / MARKER).write_text(json.dumps(fields))
        async with running(tmp_path / "restored") as runtime:
            assert (await runtime.controller.streams.describe(STREAM)).epoch == 2
            assert not (tmp_path / "restored" / MARKER).exists()
            for damaged, error in ((b"{", CorruptDataError), (b'{"format": 9, "jump": 1}', VersionTooNewError)):
                (tmp_path / "store" / MARKER).write_bytes(damaged)
                with pytest.raises(error):
                    async with running(tmp_path / "store"):
                        pass

    asyncio.run(main())


def test_chunks_written_after_the_first_pass_are_in_the_backup(tmp_path: Path) -> None:
    """They are named by metadata that is copied later, and the log need not have their bytes any more."""
    data = tmp_path / "store"

    async def main() -> None:
        first_pass = asyncio.Event()

        async def held_back() -> None:
            # While this has the log, the backup waits between its first pass and the metadata.
            with hold_log(data):
                await first_pass.wait()
                await runtime.segments.create_segment("later")
                for segment in (*SEGMENTS, "later"):
                    await append(runtime, segment, block(99))
                await runtime.segments.flush()

        async with running(data) as runtime:
            await fill(runtime)
            await runtime.segments.flush()
            chunks = sum(path.is_file() for path in (data / "chunks").rglob("*"))

            def seen(so_far) -> None:
                if so_far["files"] == chunks + 1:  # And VERSION.
                    first_pass.set()

            async with asyncio.TaskGroup() as group:
                group.create_task(held_back())
                await asyncio.sleep(0)
                manifest = await take_backup(data, tmp_path / "backup", progress=seen)
            expected = await contents(runtime)
            later = await runtime.segments.read("later", 0, 1 << 20)
        assert not manifest.missing
        await restore_backup(tmp_path / "backup", tmp_path / "restored")
        async with running(tmp_path / "restored") as runtime:
            found = (await contents(runtime)).segments
            assert {name: item[:2] for name, item in found.items()} == {
                name: item[:2] for name, item in expected.segments.items()
            }
            again = await runtime.segments.read("later", 0, 1 << 20)
            assert b"".join(again.parts) == b"".join(later.parts)

    asyncio.run(main())


def test_a_damaged_frame_fails_a_backup_and_never_shortens_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "store") as runtime:
            store = client_of(runtime)
            await store.create_stream("s/t", segments=1, create_scope=True)
            for number in range(5):
                await append(runtime, "s/t/0.#epoch.0", b"%d in the log" % number)
            (log,) = [file for file in (tmp_path / "store" / "wal").iterdir() if b"3 in the log" in file.read_bytes()]
            at = log.read_bytes().index(b"1 in the log")
            with log.open("r+b") as file:
                file.seek(at)
                file.write(b"x")
            with pytest.raises(CorruptDataError, match="durable frame"):
                await take_backup(tmp_path / "store", tmp_path / "backup")
            assert not list(tmp_path.glob("backup*"))

    asyncio.run(main())


def test_a_backup_holds_space_and_a_store_gives_it_back_afterwards(tmp_path: Path) -> None:
    data = tmp_path / "store"

    async def main() -> None:
        async with running(data) as runtime:
            await fill(runtime)
            await runtime.segments.flush()
            chunks = sorted((data / "chunks").rglob("*"))
            with hold_chunks(data):
                with pytest.raises(UnavailableError), hold_chunks(data, wait_s=0.0):
                    pass
                tail = await client_of(runtime).stream(STREAM).tail()
                await runtime.controller.streams.truncate(STREAM, tail)
                await runtime.segments.flush()
                assert set(chunks) <= set((data / "chunks").rglob("*"))
            await runtime.segments.flush()
            assert not set(chunks) <= set((data / "chunks").rglob("*"))

    asyncio.run(main())


def made(tmp_path: Path) -> Path:
    """A store that is stopped."""

    async def main() -> None:
        async with running(tmp_path / "store") as runtime:
            store = client_of(runtime)
            await store.create_stream("s/t", segments=1, create_scope=True)
            for number in range(5):
                await append(runtime, "s/t/0.#epoch.0", block(number))
            await runtime.segments.flush()

    asyncio.run(main())
    return tmp_path / "store"


def call(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=True)


def test_the_commands_report_what_they_did_and_every_flipped_byte(tmp_path: Path) -> None:
    data, backup, restored = made(tmp_path), tmp_path / "backup", tmp_path / "restored"
    done = call("backup", "create", str(backup), "--data", str(data))
    assert done.exit_code == 0, done.output
    assert "1 stream" not in done.output.splitlines()[0]
    verified = call("backup", "verify", str(backup), "--json")
    assert verified.exit_code == 0
    assert json.loads(verified.output)["sound"]
    for file in sorted(path for path in backup.rglob("*") if path.is_file()):
        content = file.read_bytes()
        damaged = bytearray(content or b"x")
        damaged[len(damaged) // 2] ^= 1
        file.write_bytes(damaged)
        found = call("backup", "verify", str(backup))
        assert found.exit_code == 7 or isinstance(found.exception, CorruptDataError), file
        refused = call("restore", str(backup), "--data", str(restored))
        assert isinstance(refused.exception, CorruptDataError), file
        assert not restored.exists()
        assert not restored.with_name("restored.restoring").exists()
        file.write_bytes(content)
    (backup / "data" / "VERSION").rename(tmp_path / "VERSION")
    assert call("backup", "verify", str(backup)).exit_code == 7
    assert isinstance(call("restore", str(backup), "--data", str(restored)).exception, CorruptDataError)
    (tmp_path / "VERSION").rename(backup / "data" / "VERSION")
    done = call("restore", str(backup), "--data", str(restored))
    assert done.exit_code == 0, done.output
    assert "stop the original" in done.output


def test_a_backup_names_the_last_receipt_it_knows_and_a_restore_asks_for_later_erasures(tmp_path: Path) -> None:
    data = tmp_path / "store"

    async def main() -> None:
        async with running(data) as runtime:
            stream = await client_of(runtime).create_stream("s/t", segments=1, create_scope=True)
            async with stream.writer() as writer:
                await writer.write_many(["keep", "erase me"])
            async with stream.reader(until_tail=True) as reader:
                found = [event async for event in reader]
            before = await take_backup(data, tmp_path / "before")
            receipt = await stream.erase([found[1]], who="ann", why="request 17")
            after = await take_backup(data, tmp_path / "after")
        assert before.erasures == {}
        assert after.erasures == {name: receipt[name] for name in ("sequence", "erasure", "sha256")}
        assert not any(b"erase me" in file.read_bytes() for file in (tmp_path / "after").rglob("*") if file.is_file())

    asyncio.run(main())
    asked = call("restore", str(tmp_path / "before"), "--data", str(tmp_path / "restored"))
    assert "erased after the backup are back: repeat all its erasures" in asked.output
    asked = call("restore", str(tmp_path / "after"), "--data", str(tmp_path / "restored-after"))
    assert "repeat the erasures with receipts after number 1" in asked.output


@pytest.mark.parametrize("path", ["../outside", "wal/../../outside", "/outside", ""])
def test_a_manifest_that_names_files_elsewhere_writes_and_reads_nothing_there(tmp_path: Path, path: str) -> None:
    backup = tmp_path / "backup"
    asyncio.run(take_backup(made(tmp_path), backup))
    manifest = load_manifest(backup)
    copied = next(iter(manifest.files.values()))
    save_manifest(backup, replace(manifest, files={**manifest.files, path: copied}))
    before = sorted(tmp_path.rglob("*"))
    for work in (restore_backup(backup, tmp_path / "new"), verify_backup(backup)):
        with pytest.raises(CorruptDataError, match="outside"):
            asyncio.run(work)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("wrong", [{"began_ms": "soon"}, {"workers": "2"}, {"tier2": 5}, {"missing": "abc"}], ids=str)
def test_a_manifest_with_a_field_of_another_type_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    backup = tmp_path / "backup"
    asyncio.run(take_backup(made(tmp_path), backup))
    save_manifest(backup, replace(load_manifest(backup), **wrong))
    with pytest.raises(CorruptDataError, match="manifest of the backup cannot be read"):
        load_manifest(backup)


def test_wrong_places_are_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    data, backup = made(tmp_path), tmp_path / "backup"
    asyncio.run(take_backup(data, backup))
    before = sorted(tmp_path.rglob("*"))
    full = tmp_path / "store" / "chunks"
    for work in (
        lambda: take_backup(data, backup),
        lambda: take_backup(data, data / "below"),
        lambda: take_backup(tmp_path / "nothing", tmp_path / "other"),
        lambda: take_backup(full, tmp_path / "other"),
        lambda: restore_backup(backup, data),
        lambda: restore_backup(data, tmp_path / "other"),
        lambda: restore_backup(backup, backup / "new"),
        lambda: restore_backup(backup, backup / "data" / "wal" / "new"),
        lambda: restore_backup(backup, data / "deep" / "new"),
        lambda: take_backup(data, backup / "new"),
    ):
        with pytest.raises(InvalidArgumentError):
            asyncio.run(work())
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(InvalidArgumentError, match="no store in this directory"):
        asyncio.run(take_backup(full, tmp_path / "other"))
    manifest = json.loads((backup / NAME).read_text())
    (backup / NAME).write_text(json.dumps({**manifest, "format": 2}))
    with pytest.raises(VersionTooNewError):
        load_manifest(backup)


def test_the_inside_of_a_backup_is_not_opened_as_a_store(tmp_path: Path) -> None:
    data, backup = made(tmp_path), tmp_path / "backup"
    asyncio.run(take_backup(data, backup))
    link = tmp_path / "link"
    link.symlink_to(backup / "data")
    for place in (backup / "data", link, backup / "data" / ".." / "data"):
        for command in (["stream", "list", "s"], ["read", "s/t"], ["standalone"]):
            outcome = call(*command, "--data", str(place))
            assert outcome.exit_code != 0
            assert "inside a backup" in str(outcome.exception)
    _, damage = asyncio.run(verify_backup(backup))
    assert not damage


def test_a_link_to_a_directory_is_followed(tmp_path: Path) -> None:
    data = made(tmp_path)
    (tmp_path / "disk").mkdir()
    for name, place in (("empty", "disk"), ("dangling", "nothing")):
        (tmp_path / name).symlink_to(tmp_path / place)
        asyncio.run(take_backup(data, tmp_path / name))
        _, damage = asyncio.run(verify_backup(tmp_path / place))
        assert not damage
        assert (tmp_path / name).is_symlink()


def test_a_mount_point_is_refused_before_anything_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, disk = made(tmp_path), tmp_path / "disk"
    disk.mkdir()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == disk)
    with pytest.raises(InvalidArgumentError, match="mount point"):
        asyncio.run(take_backup(data, disk))
    assert sorted(tmp_path.rglob("*")) == before
    asyncio.run(take_backup(data, disk / "monday"))


def test_a_backup_in_a_directory_of_tier_2_is_refused(tmp_path: Path) -> None:
    data, tier = tmp_path / "store", tmp_path / "tier"
    tier.mkdir()

    async def main() -> None:
        async with running(data, tier2=str(tier)) as runtime:
            await fill(runtime)
            await runtime.segments.flush()

    asyncio.run(main())
    before = sorted(tmp_path.rglob("*"))
    for place in (tier / "backup", tier / "chunks" / "backup"):
        with pytest.raises(InvalidArgumentError, match="tier 2"):
            asyncio.run(take_backup(data, place))
        assert sorted(tmp_path.rglob("*")) == before


def test_a_backup_of_a_store_that_lacks_chunks_is_never_verified_as_complete(tmp_path: Path) -> None:
    data, backup = made(tmp_path), tmp_path / "backup"
    next(path for path in (data / "chunks").rglob("*-*-*") if not path.suffix).unlink()
    assert call("backup", "create", str(backup), "--data", str(data)).exit_code == 7
    found = call("backup", "verify", str(backup))
    assert found.exit_code == 7
    assert "missing in the store" in found.output
    assert not json.loads(call("backup", "verify", str(backup), "--json").output)["sound"]


_TAKE = "import asyncio, pathlib, sys; from penstock.app.backup.take import take_backup; "


def test_a_store_with_a_directory_of_no_chunks_is_backed_up(tmp_path: Path) -> None:
    data, backup = made(tmp_path), tmp_path / "backup"
    # Retention deletes the chunks of a container, and leaves their directory. So does a disk that was full.
    (data / "chunks" / "99").mkdir()
    assert not asyncio.run(take_backup(data, backup)).missing
    asyncio.run(restore_backup(backup, tmp_path / "restored"))


def test_a_backup_that_is_killed_leaves_nothing_that_looks_like_one(tmp_path: Path) -> None:
    data, backup = made(tmp_path), tmp_path / "backup"
    program = (
        f"{_TAKE}import os, signal\n"
        "def progress(so_far):\n"
        "    if so_far['files'] == int(sys.argv[3]): os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(take_backup(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), progress=progress))"
    )
    files = len(asyncio.run(take_backup(data, tmp_path / "whole")).files)
    for count in (1, files):
        done = subprocess.run([sys.executable, "-c", program, data, backup, str(count)], check=False, timeout=60)
        assert done.returncode == -signal.SIGKILL
        assert not backup.exists()
        partial = backup.with_name("backup.partial")
        for place in (backup, partial):
            with pytest.raises(InvalidArgumentError):
                asyncio.run(restore_backup(place, tmp_path / "restored"))
        with pytest.raises(InvalidArgumentError, match="interrupted"):
            asyncio.run(take_backup(data, backup))
        shutil.rmtree(partial)
    # It held nothing beyond its death.
    with hold_chunks(data, wait_s=0.0):
        pass


def test_a_full_disk_ends_a_backup_and_leaves_nothing(tmp_path: Path) -> None:
    data, backup = made(tmp_path), tmp_path / "backup"
    program = (
        f"{_TAKE}import resource\n"
        "from penstock.model.errors import StorageFullError\n"
        "most = int(sys.argv[3]); resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))\n"
        "try: asyncio.run(take_backup(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))\n"
        "except OSError as error: sys.exit(28 if 'disk I/O' in str(error) else 1)  # SQLite says so of a file over the limit.\n"
        "except StorageFullError: sys.exit(28)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    for most in (0, 4096, 100_000, 1 << 20):
        done = subprocess.run([sys.executable, "-c", program, data, backup, str(most)], check=False, timeout=60)
        assert done.returncode == 28, most
        assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_an_old_copy_beside_a_tier_2_that_went_on_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "tier2"
    place.mkdir()

    async def main() -> None:
        async with running(tmp_path / "store", tier2=str(place)) as runtime:
            await fill(runtime)
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        async with running(tmp_path / "store") as runtime:
            await append(runtime, SEGMENTS[0], block(1))
        with pytest.raises(InvalidArgumentError, match="opened by another copy") as refused:
            async with running(tmp_path / "copy"):
                pass
        assert "penstock restore" in str(refused.value)

    asyncio.run(main())
