"""A server's process: when it ends, and what it takes of the machine."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.app.descriptors import connections_allowed
from penstock.testing.server import ServerProcess

pytestmark = pytest.mark.server
PORTS = ("--controller-port", "0", "--store-port", "0", "--http-port", "0")
OWN_FILES = 768


def test_a_server_whose_tier_2_does_not_answer_ends_when_it_is_told_to(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "penstock", "standalone", "--data", str(tmp_path / "data"), *PORTS),
                *("--tier2", "s3://bucket/prefix", "--s3-endpoint", endpoint),
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "z"},
        )
        try:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGTERM)
                _, said = process.communicate(timeout=20)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0
    assert "server stopped before it was ready" in said
    assert "Traceback" not in said


def test_a_server_takes_the_descriptors_that_it_may_have(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # What a shell gives; what the process may take for itself is more.
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, before[1]), before[1]))
        with ServerProcess(tmp_path / "data", "--workers", "2") as server:
            assert server.process is not None
            for pid in (server.process.pid, *(worker["pid"] for worker in server.workers)):
                (limit,) = [
                    line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if "Max open files" in line
                ]
                assert int(limit.split()[3]) == min(before[1], 1 << 16)
            assert server.stop() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_most_descriptors_are_for_clients_where_there_are_many() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = {}
    try:
        for soft in (256, 1024, 4096):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, before[1]), before[1]))
            found[soft] = connections_allowed()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found[256] == 64
    assert found[1024] == 1024 - OWN_FILES
    assert found[4096] == 3072
