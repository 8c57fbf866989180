"""Start, kill and restart a real ``penstock standalone`` in its own process, for tests and benchmarks."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.model.errors import UnavailableError
from penstock.storage.machine.rng import RealRng

_FIRST_PORT = 12_000  # number of a port
_PORTS_MIN = 4_000  # ports; with fewer to choose from, the system chooses
_STOP_S = 60.0  # seconds until a server that does not end is killed: one whose log is away gives up after 30


class ServerProcess:
    """A server on ``data``. Its two ports stay the same across restarts, but ``http_port`` changes at each start. With
    ``--workers`` among the options, the ports of the workers also change; ``workers`` has them, with their pids.

    Use it in a ``with`` block: it starts at the beginning, and stops at the end even after an error.
    """

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.options: Sequence[str] = options
        self.controller_port, self.store_port = free_ports(2)
        if "--workers" in options:
            # Free ports with consecutive numbers cannot be reserved.
            self.store_port = 0
        self.http_port = 0
        self.workers: Sequence[Mapping[str, Any]] = ()
        self.process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.controller_port}"

    @property
    def log(self) -> Path:
        return self.data.with_name(self.data.name + ".log")

    def start(self, timeout_s: float = 90) -> float:
        """Start, and return after how many seconds the server was ready. Raises UnavailableError with the server's
        log."""
        started = time.monotonic()
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "penstock", "standalone", "--json", "--data", str(self.data)),
                    *("--controller-port", str(self.controller_port), "--store-port", str(self.store_port)),
                    *("--http-port", "0"),
                    *self.options,
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        out = self.process.stdout
        if out is None or not select.select([out], [], [], timeout_s)[0]:
            self.kill()
            raise UnavailableError("the server did not start in time", log=self.tail())
        line = out.readline()
        if not line or not (facts := json.loads(line)).get("serving"):
            self.kill()
            raise UnavailableError("the server did not start", log=self.tail())
        self.http_port = int(facts["http"].rpartition(":")[2])
        self.workers = facts["workers"]
        return time.monotonic() - started

    def kill(self) -> None:
        """``kill -9``, and wait until the process has ended."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop the server with a clean shutdown. Returns the exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            status = self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait(5)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None
        return status

    def tail(self) -> str:
        """The last lines of the server's log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now, and that the system gives to nobody who connects or listens without a number."""
    first, last = _FIRST_PORT, _given_by_the_system() - 1
    rng = RealRng()
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            port = first + rng.randrange(last - first + 1) if last - first >= _PORTS_MIN else 0
            with suppress(OSError):  # taken
                held.append(socket.create_server(("127.0.0.1", port)))
        return [item.getsockname()[1] for item in held]
    finally:
        for item in held:
            item.close()


def _given_by_the_system() -> int:
    """The first port that Linux gives to connections by itself."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 0
