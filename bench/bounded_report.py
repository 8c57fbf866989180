"""What the measuring of bounds shares: settings, servers, and the lines that it prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.testing.server import ServerProcess
from tests.abuse.peers import MIB, forget_peak, peak_of


@dataclass
class Bench:
    """One run. ``met`` turns false with the first promise that is not kept."""

    directory: Path
    memory_bytes: int
    scale: float
    seconds: float
    met: bool = True
    _servers: int = field(default=0)

    @property
    def bound_bytes(self) -> int:
        """The budget and a fifth."""
        return self.memory_bytes * 6 // 5

    def count(self, full: int) -> int:
        return max(1, int(full * self.scale))

    def show(self, name: str, what: str, figure: str, target: str, *, met: bool) -> None:
        """One line."""
        self.met = self.met and met
        print(f"{'ok  ' if met else 'MISS'}  {name:<10}  {what:<66}  {figure:>24}  target {target}", flush=True)

    def server(self, name: str, *options: str) -> ServerProcess:
        return ServerProcess(self.directory / name, "--memory", str(self.memory_bytes), *options)

    @contextmanager
    def peak(self, server: ServerProcess, name: str, what: str) -> Iterator[None]:
        """Show the most memory that the server held within the block."""
        pid = pid_of(server)
        forget_peak(pid)
        yield
        peak = peak_of(pid)
        budget = f"<= {self.bound_bytes / MIB:.0f} MiB"
        self.show(name, what, f"{peak / MIB:.0f} MiB", budget, met=peak <= self.bound_bytes)


def pid_of(server: ServerProcess) -> int:
    """The process of a server that runs."""
    if server.process is None:
        raise RuntimeError("the server does not run")
    return server.process.pid
