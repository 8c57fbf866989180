"""Real processes: a server with workers loses its data directory, is rebuilt, and runs on; then it loses one worker."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workers_server import wait_until

import penstock
from penstock.model.errors import RetentionHoldError, UnavailableError
from penstock.testing.server import ServerProcess

pytestmark = pytest.mark.server

KEYS = [f"k{number}" for number in range(11)]


def penstock_command(*words: str) -> tuple[int, Any, str]:
    """Exit status, the JSON that was printed, and standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words, "--json"], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else None, done.stderr


def fill(store: Any) -> None:
    stream = store.create_stream("demo/a", segments=5, create_scope=True)
    write(stream, 0, 2000)
    stream.scale(7)
    write(stream, 2000, 3000)
    with stream.transaction() as txn:
        for number in range(3000, 3200):
            txn.write(b"%06d" % number, key=KEYS[number % len(KEYS)])
    store.holds("demo").add(owner="law", reason="a dispute", hold_id="h")
    held = store.create_stream("demo/sealed", segments=2)
    write(held, 0, 100)
    held.seal()


def write(stream: Any, first: int, last: int) -> None:
    with stream.writer() as writer:
        for number in range(first, last):
            writer.write(b"%06d" % number, key=KEYS[number % len(KEYS)])


def numbers(stream: Any) -> dict[int, list[int]]:
    """What is read, by key."""
    found: dict[int, list[int]] = {}
    with stream.reader(until_tail=True) as reader:
        for event in reader:
            number = int(event.data)
            found.setdefault(number % len(KEYS), []).append(number)
    return found


def expected(last: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number in range(last):
        found.setdefault(number % len(KEYS), []).append(number)
    return found


def tiered(tier2: Path) -> int:
    """Bytes in chunks. Segments of the system are not among those that are waited for."""
    return sum(file.stat().st_size for file in tier2.glob("worker-*/chunks/*/*") if file.suffix != ".idx")


def lost_of(report: Any) -> list[Any]:
    """What is missing of streams that are not the system's, whose last entries may be in the log alone."""
    found = [*report["damage"], *report["made_anew"], *report["unreachable"]]
    return found + [item for item in report["lost"] if not item["segment"].startswith("_system/")]


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Path]:
    """The tier 2 of a server whose directory is lost after it stopped."""
    tier2 = tmp_path / "tier2"
    tier2.mkdir()
    server = ServerProcess(tmp_path / "old", "--workers", "3", "--tier2", str(tier2))
    with server:
        with penstock.connect(server.address) as store:
            fill(store)
        wait_until(lambda: tiered(tier2) >= 14 * 3300, "everything is in tier 2")
        assert server.stop() == 0, server.tail()
    shutil.rmtree(tmp_path / "old")
    return tier2


def test_a_server_with_workers_is_rebuilt_and_one_worker_repaired(lost: Path, tmp_path: Path) -> None:
    status, report, said = penstock_command("rebuild", "--source", str(lost), "--data", str(tmp_path / "new"))
    assert (status in (0, 7), lost_of(report), report["workers"]) == (True, [], 3), (report, said)
    with pytest.raises(UnavailableError, match="leave --workers out"):
        ServerProcess(tmp_path / "new", "--workers", "2").start()
    server = ServerProcess(tmp_path / "new", "--workers", "3")
    with server:
        with penstock.connect(server.address) as store:
            stream = store.stream("demo/a")
            assert numbers(stream) == expected(3200)
            assert numbers(store.stream("demo/sealed")) == expected(100)
            with pytest.raises(RetentionHoldError):
                stream.truncate(stream.tail())
            write(stream, 3200, 4000)
            assert numbers(stream) == expected(4000)
        server.kill()
    # The last events are in the logs alone. One worker's metadata is damaged.
    database = tmp_path / "new" / "workers" / "1" / "metadata" / "store.db"
    database.write_bytes(b"x" * 10_000)
    status, diagnosis, _ = penstock_command("doctor", "--data", str(tmp_path / "new"))
    assert (status, diagnosis["starts"]) == (7, False)
    status, report, said = penstock_command("rebuild", "--data", str(tmp_path / "new"), "--worker", "1")
    assert (status, report["worker"], report["log_kept"]) == (0, 1, True), (report, said)
    assert penstock_command("doctor", "--data", str(tmp_path / "new"))[1]["starts"]
    with server:
        with penstock.connect(server.address) as store:
            stream = store.stream("demo/a")
            assert numbers(stream) == expected(4000)
            write(stream, 4000, 4100)
            assert numbers(stream) == expected(4100)
        assert server.stop() == 0, server.tail()
    # The whole directory of another one, whose tier 2 was in it, cannot come back.
    shutil.rmtree(tmp_path / "new" / "workers" / "2")
    status, _, said = penstock_command("rebuild", "--data", str(tmp_path / "new"), "--worker", "2")
    assert status == 2
    assert "restore a backup" in said


def test_a_rebuild_that_is_killed_can_be_repeated(lost: Path, tmp_path: Path) -> None:
    new, staging = tmp_path / "new", tmp_path / "new.rebuilding"
    for marker in ("workers/1/metadata", "restored.json"):
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "rebuild", "--source", str(lost), "--data", str(new)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and not (staging / marker).exists():
            time.sleep(0.005)
        process.kill()
        process.wait()
        if new.exists():  # It was faster.
            shutil.rmtree(new)
            continue
        status, _, said = penstock_command("rebuild", "--source", str(lost), "--data", str(new))
        assert status == 2
        assert "delete the directory that it left" in said
        shutil.rmtree(staging)
    status, report, said = penstock_command("rebuild", "--source", str(lost), "--data", str(new))
    assert (status in (0, 7), lost_of(report)) == (True, []), said
