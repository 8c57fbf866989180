"""For tests of programs that use Penstock, and of your own implementations of its ports.

* ``World`` is a whole store in memory that can crash and be opened again.
* ``FakeClock``, ``SeededRng`` and ``InlineOffload`` stand for a machine: time, chance and threads.
* ``ServerProcess`` is a real server in a process of its own.
* ``penstock.testing.simulation`` runs a whole store on a virtual clock and disk (docs/design/0010-simulation.md).
* ``run_conformance`` holds an implementation of a port to its laws; the suites are in ``penstock.testing.conformance``.
"""

from penstock.testing.conformance import run_conformance
from penstock.testing.fakes import FakeClock, InlineOffload, SeededRng
from penstock.testing.server import ServerProcess
from penstock.testing.world import World

__all__ = ["FakeClock", "InlineOffload", "SeededRng", "ServerProcess", "World", "run_conformance"]
