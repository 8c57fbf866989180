"""Processes of a real cluster: ``penstock store`` and ``penstock controller``."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from penstock.model.errors import UnavailableError

START_S = 60.0
DEADLINE_S = 60.0


def program(level: int | None = None) -> list[str]:
    """The command of Penstock, as a version of this level would be; None: as it is."""
    if level is None:
        return [sys.executable, "-m", "penstock"]
    code = f"""
import runpy
from penstock.core.cluster import levels
levels.LEVEL = {level}
runpy.run_module("penstock", run_name="__main__", alter_sys=True)
"""
    return [sys.executable, "-c", code]


def penstock(*arguments: str, level: int | None = None) -> str:
    """The output of a command that succeeds."""
    found = subprocess.run([*program(level), *arguments], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


class ClusterProcess:
    """A store or a controller, from entry to exit of the block. ``facts``: what it has printed last. ``level``: that of its
    version; None: of ours."""

    def __init__(self, role: str, name: str, *options: str, log: Path, level: int | None = None) -> None:
        self.name = name
        self.log = log
        self.facts: dict[str, Any] = {}
        self._command = [*program(level), role, "--name", name, "--json", *options]
        self._process: subprocess.Popen[str] | None = None

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def start(self) -> None:
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.read()

    def read(self) -> dict[str, Any]:
        """What the process prints next."""
        out = self.process.stdout
        if out is None or not select.select([out], [], [], START_S)[0] or not (line := out.readline()):
            self.kill()
            raise UnavailableError("the process did not start", log=self.log.read_text()[-3000:])
        self.facts = json.loads(line)
        return self.facts

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.terminate()
        status = self.process.wait(timeout=90)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def until(condition: Callable[[], bool]) -> float:
    """Seconds until the condition holds."""
    since = time.monotonic()
    while not condition():
        assert time.monotonic() - since < DEADLINE_S
        time.sleep(0.2)
    return time.monotonic() - since
