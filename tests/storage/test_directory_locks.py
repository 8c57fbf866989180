"""The lock of a directory ends with its owner's close, whatever processes were forked meanwhile."""

import os
from pathlib import Path

import pytest

from penstock.model.errors import DirectoryInUseError
from penstock.spark.jobs.job_files import locked
from penstock.storage.machine.data_directory import DataDirectory


class Fork:
    """A forked child that does ``work`` on request, and lives until it is asked to end."""

    def __init__(self, work=lambda: None) -> None:
        self._begin, self._done, self._end = os.pipe(), os.pipe(), os.pipe()
        self._child = os.fork()
        if self._child == 0:
            status = 1
            try:
                os.read(self._begin[0], 1)
                work()
                os.write(self._done[1], b"1")
                os.read(self._end[0], 1)
                status = 0
            finally:
                os._exit(status)

    def work(self) -> None:
        os.write(self._begin[1], b"1")
        assert os.read(self._done[0], 1) == b"1"

    def end(self) -> None:
        os.write(self._end[1], b"1")
        assert os.waitpid(self._child, 0)[1] == 0


@pytest.mark.parametrize("take", [DataDirectory.open, DataDirectory.look])
def test_a_closed_directory_can_be_taken_while_a_fork_lives(tmp_path: Path, take) -> None:
    DataDirectory.open(tmp_path / "data").close()
    held = take(tmp_path / "data")
    child = Fork()
    child.work()
    held.close()
    with DataDirectory.open(tmp_path / "data"):
        pass
    child.end()


def test_a_fork_that_closes_leaves_its_parent_the_directory(tmp_path: Path) -> None:
    held = DataDirectory.open(tmp_path / "data")
    child = Fork(held.close)
    child.work()
    with pytest.raises(DirectoryInUseError):
        DataDirectory.open(tmp_path / "data")
    child.end()
    with pytest.raises(DirectoryInUseError):
        DataDirectory.open(tmp_path / "data")
    held.close()
    DataDirectory.open(tmp_path / "data").close()


@pytest.mark.parametrize("leaves", [False, True])
def test_the_lock_of_a_job_ends_with_it_while_a_fork_lives(tmp_path: Path, leaves: bool) -> None:
    lock = locked(tmp_path / "lock", "another run works here")
    lock.__enter__()
    child = Fork((lambda: lock.__exit__(None, None, None)) if leaves else (lambda: None))
    child.work()
    with pytest.raises(DirectoryInUseError), locked(tmp_path / "lock", "another run works here"):
        pass
    lock.__exit__(None, None, None)
    with locked(tmp_path / "lock", "another run works here"):
        pass
    child.end()
