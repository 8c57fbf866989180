"""A forked child leaves its parent's stores alone: it is refused, and the parent goes on as if nothing had happened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.server import ServerProcess

PROGRAM = Path(__file__).with_name("fork_program.py")


def run(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.server
@pytest.mark.slow
def test_forked_children_leave_a_remote_store_alone(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        # The child also leaves the loop as the parent does, and reports it.
        assert run("remote", server.address) == ["done", "done"]


@pytest.mark.slow
def test_forked_children_leave_an_embedded_store_alone(tmp_path: Path) -> None:
    assert run("embedded", str(tmp_path / "data")) == ["done", "done"]
