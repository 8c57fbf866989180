"""A real disk that fills up: all callers get an error, nothing acknowledged is lost, and truncation makes room again."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time

import pytest

import penstock
from penstock.model.errors import StorageFullError
from penstock.testing.server import ServerProcess

pytestmark = pytest.mark.server
SIZE = "220m"
OFFICIAL = """
import json, os, sys
import pravega_client

manager = pravega_client.StreamManager(f"tcp://{sys.argv[1]}", False, False)
writer = manager.create_writer("full", "official")
writer.write_event("0", routing_key="k")
writer.flush()
print(json.dumps("begun"), flush=True)
sys.stdin.readline()
for number in range(1, 60):
    writer.write_event(f"{number} " + "." * 100_000, routing_key="k")
writer.flush()
print(json.dumps("flushed"), flush=True)
os._exit(0)
"""


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


def hog(path, *, leave_bytes=0):
    """Somebody else's file takes the disk."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while free_bytes(path.parent) > leave_bytes:
            file.write(bytes(4096))


def fill(stream, *, size=100_000):
    """Write until the store refuses; returns the numbers that were reported durable."""
    acked = []
    try:
        with stream.writer(deadline_s=3) as writer:
            for number in range(400_000_000 // size):
                writer.write(f"{number} ".encode() + bytes(size), key="k")
                if number % 20 == 19:
                    writer.flush()
                    acked = list(range(number + 1))
    except StorageFullError:
        return acked
    raise AssertionError("the disk did not fill up")


def numbers(stream):
    with stream.reader(until_tail=True) as reader:
        return [int(event.data.split(b" ")[0]) for event in reader]


def wait_for_space(path, tail=str):
    deadline = time.monotonic() + 30
    while free_bytes(path) < 50 << 20:
        assert time.monotonic() < deadline, f"no space came back\n{tail()}"
        time.sleep(0.2)


def test_a_full_disk_is_survived_and_left_by_truncation(small_disk):
    options = ("--log", "80MiB", "--memory", "96MiB")
    server = ServerProcess(small_disk / "data", *options)
    with server:
        with penstock.connect(server.address) as store:
            acked = fill(store.create_stream("full/st", segments=1, create_scope=True))
        assert acked
        server.kill()
        # Somebody takes the very last bytes, too.
        hog(small_disk / "hog")
        assert free_bytes(small_disk) < 8192
        server.start()
        with penstock.connect(server.address) as store:
            stream = store.stream("full/st")
            found = numbers(stream)
            assert found[: len(acked)] == acked
            assert found == list(range(len(found)))
            stream.truncate(stream.tail())
            wait_for_space(small_disk, server.tail)
            with stream.writer(deadline_s=30) as writer:
                writer.write(b"again", key="k")
            with stream.reader(until_tail=True) as reader:
                assert [event.data for event in reader][-1] == b"again"


@pytest.mark.slow
def test_all_clients_wait_for_space_and_go_on_by_themselves(small_disk):
    server = ServerProcess(small_disk / "data", "--log", "80MiB", "--memory", "96MiB")
    with server, penstock.connect(server.address) as store:
        full = store.create_stream("full/st", segments=1, create_scope=True)
        own = store.create_stream("full/own", segments=1)
        official = store.create_stream("full/official", segments=1)
        client = subprocess.Popen(
            [sys.executable, "-c", OFFICIAL, server.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        failures = []

        def write():
            try:
                with own.writer(deadline_s=60) as writer:
                    for number in range(60):
                        writer.write(f"{number} ".encode() + bytes(100_000), key="k")
            except BaseException as error:
                failures.append(error)
                raise

        writing = threading.Thread(target=write)
        try:
            assert json.loads(client.stdout.readline()) == "begun"
            hog(small_disk / "hog", leave_bytes=60 << 20)
            # The smallest appends take the most log for their bytes: it must not be full to the brim.
            fill(full, size=1000)
            client.stdin.write("go\n")
            client.stdin.flush()
            writing.start()
            with pytest.raises(StorageFullError), own.transaction(deadline_s=2) as transaction:
                transaction.write(b"never", key="k")
            assert client.poll() is None
            assert writing.is_alive()
            full.truncate(full.tail())
            wait_for_space(small_disk, server.tail)
            writing.join(60)
            assert not writing.is_alive()
            assert not failures
            assert json.loads(client.stdout.readline()) == "flushed"
        finally:
            client.kill()
            client.communicate()
        assert numbers(own) == list(range(60))
        assert numbers(official) == list(range(60))


def test_a_store_in_this_process_says_so_too(small_disk):
    hog(small_disk / "hog", leave_bytes=140 << 20)
    with penstock.open(small_disk / "data", memory_bytes=64 << 20, log_bytes=80 << 20) as store:
        stream = store.create_stream("full/st", segments=1, create_scope=True)
        acked = fill(stream)
        found = numbers(stream)
        assert found[: len(acked)] == acked
        (small_disk / "hog").unlink()
        with stream.writer(deadline_s=30) as writer:
            writer.write(f"{len(found)} ", key="k")
        assert numbers(stream) == list(range(len(found) + 1))
