"""A real server on a real disk that fills up: nothing acknowledged is lost, and truncation makes room again."""

import contextlib
import os
import subprocess
import time

import pytest

import penstock
from penstock.model.errors import PenstockError
from penstock.testing.server import ServerProcess

pytestmark = pytest.mark.server
SIZE = "220m"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def free_bytes(path):
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def fill(server):
    """Write until the store refuses; returns the numbers that were reported durable."""
    acked = []
    with penstock.connect(server.address) as store:
        stream = store.create_stream("full/st", segments=1, create_scope=True)
        try:
            with stream.writer(deadline_s=5) as writer:
                for number in range(4000):
                    writer.write(f"{number} ".encode() + bytes(100_000), key="k")
                    if number % 20 == 19:
                        writer.flush()
                        acked = list(range(number + 1))
        except PenstockError:
            return acked
    raise AssertionError("the disk did not fill up")


def test_a_full_disk_is_survived_and_left_by_truncation(small_disk):
    options = ("--log", "80MiB", "--memory", "64MiB")
    server = ServerProcess(small_disk / "data", *options)
    with server:
        acked = fill(server)
        assert acked
        server.kill()
        # Somebody takes the very last bytes, too.
        with contextlib.suppress(OSError), (small_disk / "hog").open("wb") as hog:
            while True:
                hog.write(bytes(4096))
                hog.flush()
        assert free_bytes(small_disk) < 8192
        server.start()
        with penstock.connect(server.address) as store:
            stream = store.stream("full/st")
            with stream.reader(until_tail=True) as reader:
                found = [int(event.data.split(b" ")[0]) for event in reader]
            assert found[: len(acked)] == acked
            assert found == list(range(len(found)))
            stream.truncate(stream.tail())
            deadline = time.monotonic() + 30
            while free_bytes(small_disk) < 50 << 20:
                assert time.monotonic() < deadline, f"no space came back\n{server.tail()}"
                time.sleep(0.2)
            with stream.writer(deadline_s=30) as writer:
                writer.write(b"again", key="k")
            with stream.reader(until_tail=True) as reader:
                assert [event.data for event in reader][-1] == b"again"
