"""A cluster of real processes on this machine: stores and controllers, started by the command line and killed by signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from penstock.testing.server import free_ports

START_S = 60.0


class ClusterProcess:
    """One process. ``facts``: what it has printed last about itself."""

    def __init__(self, directory: Path, command: str, name: str, *options: str) -> None:
        self.name = name
        self.command = command
        self.log = directory / f"{name}.log"
        self.facts: Mapping[str, Any] = {}
        self.address = ""
        self._options = [command, "--json", "--name", name, "--data", str(directory / name), *options]
        self._process: subprocess.Popen[str] | None = None
        self._reading: threading.Thread | None = None

    def start(self) -> Self:
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", *self._options],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        self._reading = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reading.start()
        return self

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if line.startswith("{"):
                    self.facts = json.loads(line)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait until the process has ended, and return its exit status. Kills it if it takes too long."""
        assert self._process is not None
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        if self._reading is not None:
            self._reading.join()
        return status

    def end(self, number: int) -> int:
        """Send a signal, and return the exit status."""
        self.signal(number)
        return self.wait()

    def kill(self) -> None:
        self.facts = {}
        self.end(signal.SIGKILL)

    def tail(self) -> str:
        return f"--- {self.name}\n" + self.log.read_text(errors="replace")[-6000:]


class ClusterOfProcesses:
    """Use it in a ``with`` block: at its end, all processes are gone."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        ledgers: str,
        *,
        containers: int = 4,
        tier2: str | None = None,
        endpoint: str | None = None,
    ) -> None:
        self.directory = directory
        self.url = f"zk://{zookeeper}/penstock/{directory.name}-{os.getpid()}"
        self.secret = directory / "secret"
        self.processes: list[ClusterProcess] = []
        if tier2 is None:
            tier2 = str(directory / "tier2")
            Path(tier2).mkdir()
        self.init = (
            *("cluster", "init", "--cluster", self.url, "--tier2", tier2, "--bookkeeper-root", ledgers),
            *("--containers", str(containers), "--secret-file", str(self.secret)),
            *(() if endpoint is None else ("--s3-endpoint", endpoint)),
        )
        self.run(*self.init)

    def run(self, *words: str) -> str:
        """A command of the command line, which succeeds."""
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *words], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr + "\n".join(one.tail() for one in self.processes)
        return done.stdout

    def status(self) -> dict[str, Any]:
        return json.loads(self.run("cluster", "status", "--cluster", self.url, "--json"))

    def store(self, name: str, *options: str) -> ClusterProcess:
        port, links = free_ports(2)
        process = self._add("store", name, "--port", str(port), "--links-port", str(links), *options)
        process.address = f"127.0.0.1:{port}"
        return process

    def controller(self, name: str, *, secret: Path | None = None) -> ClusterProcess:
        port, http = free_ports(2)
        ports = ("--controller-port", str(port), "--http-port", str(http))
        process = self._add("controller", name, *ports, secret=secret)
        process.address = f"127.0.0.1:{port}"
        return process

    def _add(self, command: str, name: str, *options: str, secret: Path | None = None) -> ClusterProcess:
        shared = ("--cluster", self.url, "--secret-file", str(secret or self.secret))
        process = ClusterProcess(self.directory, command, name, *shared, *options).start()
        self.processes.append(process)
        return process

    def until(self, found: Callable[[], bool], timeout_s: float = START_S) -> float:
        """Wait, and return for how long. Fails with the logs of all processes."""
        began = time.monotonic()
        while not found():
            if time.monotonic() - began > timeout_s:
                raise AssertionError("\n".join(one.tail() for one in self.processes))
            time.sleep(0.02)
        return time.monotonic() - began

    @property
    def controllers(self) -> str:
        """The addresses of all controllers, as clients are given them."""
        return ",".join(one.address for one in self.processes if one.command == "controller")

    def active(self) -> ClusterProcess:
        """The active controller, once there is one."""
        found: list[ClusterProcess] = []

        def look() -> bool:
            found[:] = [one for one in self.processes if one.facts.get("role") == "active" and one.running]
            return bool(found)

        self.until(look)
        return found[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.processes:
            if one.running:
                one.kill()
