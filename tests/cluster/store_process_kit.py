"""Processes of a real cluster: ``penstock store`` and ``penstock controller``."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from penstock.model.errors import UnavailableError

START_S = 60.0


def penstock(*arguments: str) -> str:
    """The output of a command that succeeds."""
    found = subprocess.run([sys.executable, "-m", "penstock", *arguments], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


class ClusterProcess:
    """A store or a controller, from entry to exit of the block. ``facts``: what it has printed last."""

    def __init__(self, role: str, name: str, *options: str, log: Path) -> None:
        self.name = name
        self.log = log
        self.facts: dict[str, Any] = {}
        self._command = [sys.executable, "-m", "penstock", role, "--name", name, "--json", *options]
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
