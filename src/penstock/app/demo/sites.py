"""Where the demo's store runs: the processes that serve it, and what is killed in the middle."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from penstock.app.demo.processes import Child
from penstock.model.errors import UnavailableError
from penstock.model.values.dataclass import dataclass

_DOWN_S = 1.0
START_S = 60.0

Start = Callable[..., Child]
"""Starts a Python process: its name, then the words after the interpreter's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Something that is killed, by ``run``, once this ``share`` of the events is written. ``run`` may start it again before
    it returns; else it stays away."""

    share: float
    what: str
    run: Callable[[], None]


class Site(Protocol):
    """The store of the demo. ``writes_s``: the time over which the writer spreads all flights."""

    writes_s: float

    @property
    def story(self) -> str:
        """One sentence about what runs, and one about what is killed."""
        ...

    @property
    def address(self) -> str:
        """Addresses of the controllers, separated by commas."""
        ...

    @property
    def official_address(self) -> str:
        """The address of one controller, for a client that takes only one."""
        ...

    @property
    def state(self) -> str:
        """What the view shows about it."""
        ...

    @property
    def kills(self) -> Sequence[Kill]:
        """In the order in which they happen."""
        ...

    def start(self, start: Start) -> None:
        """Start, and return once the store serves. Raises UnavailableError."""
        ...

    def look(self) -> None:
        """Called several times a second. Raises UnavailableError if a process has failed by itself."""
        ...


def free_ports(count: int) -> Sequence[int]:
    """Ports that are free now, on loopback."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [item.getsockname()[1] for item in held]
    for item in held:
        item.close()
    return ports


def until_serving(child: Child, *, within_s: float = START_S) -> None:
    """Wait until a server says that it serves. Raises UnavailableError."""
    deadline = time.monotonic() + within_s
    while "serving" not in child.last:
        child.check()
        if time.monotonic() > deadline:
            raise UnavailableError(f"the {child.name} did not start in {within_s:.0f} s")
        time.sleep(0.02)


class OneServer:
    """Implements ``Site``: one standalone server, which is killed and started again."""

    def __init__(self, data: Path) -> None:
        self.writes_s = 60.0
        self._data = data
        self._controller_port, self._store_port = free_ports(2)
        self._start: Start | None = None
        self._server: Child | None = None
        self.state = "starting"
        self.kills = (Kill(share=0.45, what="store", run=self._kill),)

    @property
    def story(self) -> str:
        """As the protocol says."""
        return "The store is a process of its own. In the middle it is killed (kill -9)."

    @property
    def address(self) -> str:
        """As the protocol says."""
        return f"127.0.0.1:{self._controller_port}"

    @property
    def official_address(self) -> str:
        """As the protocol says."""
        return self.address

    def start(self, start: Start) -> None:
        """As the protocol says."""
        self._start = start
        self._server = start(
            "store",
            *("-m", "penstock", "standalone", "--json", "--data", str(self._data / "store")),
            *("--controller-port", str(self._controller_port), "--store-port", str(self._store_port)),
            *("--http-port", "0", "--retention-cycle", "1s"),
        )
        until_serving(self._server)
        self.state = f"serving on {self.address}, process {self._server.process.pid}"

    def _kill(self) -> None:
        if self._server is None or self._start is None:
            return
        self._server.kill()
        self.state = "killed"
        time.sleep(_DOWN_S)
        self.start(self._start)

    def look(self) -> None:
        """As the protocol says."""
        if self._server is not None:
            self._server.check()
