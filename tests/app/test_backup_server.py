"""Backups of servers, from another process: one that runs, and one with two workers that is stopped."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.model.errors import InvalidCutError
from penstock.testing.server import ServerProcess

pytestmark = pytest.mark.server


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


def write(stream, word: str, count: int) -> None:
    with stream.writer() as writer:
        for number in range(count):
            writer.write(f"{word} {number}", key=str(number))


def read(stream, start=None) -> list[str]:
    with stream.reader(start=start, until_tail=True) as reader:
        return sorted(event.data.decode() for event in reader)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_goes_on_from_its_backup_in_segments_of_its_own(tmp_path: Path, workers: int) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    with ServerProcess(tmp_path / "data", "--workers", str(workers)) as server:
        with penstock.connect(server.address) as store:
            store.create_scope("s")
            stream = store.create_stream("s/t", segments=6)
            write(stream, "old", 300)
            expected, within = read(stream), stream.tail()
            first = command("backup", "create", backup, "--data", server.data, "--json")
            if workers == 1:
                assert first.returncode == 0, first.stderr
            write(stream, "lost", 300)
            ahead = stream.tail()
        assert server.stop() == 0
    if workers > 1:
        # Its logs have no common position while it runs.
        assert first.returncode == 8
        assert "stopped" in first.stderr
        assert not backup.exists()
        assert not backup.with_name("backup.partial").exists()
        done = command("backup", "create", backup, "--data", server.data, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["workers"] == workers
        expected, within = sorted([*expected, *(f"lost {number}" for number in range(300))]), ahead
    done = command("restore", backup, "--data", restored)
    assert done.returncode == 0, done.stderr
    with ServerProcess(restored) as server:
        with penstock.connect(server.address) as store:
            stream = store.stream("s/t")
            assert read(stream) == expected
            assert stream.describe().epoch == 1
            write(stream, "new" * 20, 600)
            assert len(read(stream, within)) == 600
            if workers == 1:
                with pytest.raises(InvalidCutError):
                    read(stream, ahead)
        assert server.stop() == 0
    with ServerProcess(restored) as server, penstock.connect(server.address) as store:
        assert store.stream("s/t").describe().epoch == 1, "the move to new segments is made once"
