"""A real process that reads is killed between its work and its commit, and another one takes over."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

import penstock
from penstock.testing.server import ServerProcess

# A server and two processes: about five seconds. No simulated crash shows that a killed process leaves the group.
pytestmark = pytest.mark.server
EVENTS, DIES_AT, EVERY, LEASE_S, REFRESH_S = 100, 37, 10, 1.0, 0.25
READER = """
import os, signal, sys, penstock
address, dies_at, every, lease_s, refresh_s = sys.argv[1], *map(float, sys.argv[2:])
with penstock.connect(address) as store:
    group = store.open_reader_group("a/g", lease_s=lease_s, refresh_s=refresh_s)
    with group.reader(f"process {os.getpid()}", auto_commit=False) as reader:
        for count, event in enumerate(reader, start=1):
            os.write(1, event.data + b"\\n")
            if count == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if count % every == 0:
                reader.commit()
        reader.commit()
"""


def run(address, dies_at):
    """What one process has processed, and the time that it took."""
    began = time.monotonic()
    arguments = map(str, (dies_at, EVERY, LEASE_S, REFRESH_S))
    done = subprocess.run(
        (sys.executable, "-c", READER, address, *arguments), capture_output=True, timeout=60, check=False
    )
    assert done.returncode == (-9 if dies_at else 0), done.stderr
    return [int(line) for line in done.stdout.split()], time.monotonic() - began


def test_a_killed_reader_repeats_at_most_what_it_had_not_committed(tmp_path):
    with ServerProcess(tmp_path / "store") as server, penstock.connect(server.address) as store:
        stream = store.create_stream("a/s", create_scope=True)
        with stream.writer() as writer:
            writer.write_many([b"%d" % number for number in range(EVENTS)])
        stream.seal()
        group = store.reader_group("a/g", ["a/s"], lease_s=LEASE_S, refresh_s=REFRESH_S)
        first, _ = run(server.address, DIES_AT)
        assert first == list(range(DIES_AT))
        assert len(group.readers()) == 1  # the dead one
        second, took_s = run(server.address, 0)
        assert second == list(range(DIES_AT - DIES_AT % EVERY, EVENTS))
        assert took_s < 20  # the lease is 1 s; the rest is the start of a process
        assert group.readers() == []
