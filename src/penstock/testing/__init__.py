"""Tools to test programs that use Penstock, and your own implementations of its ports.

* ``World`` is a whole store in memory that can crash and be reopened.
* ``FakeClock``, ``SeededRng`` and ``InlineOffload`` replace the clock, randomness and threads of a machine.
* ``ServerProcess`` is a real server in a process of its own.
* ``penstock.testing.simulation`` runs a whole store on a virtual clock and disk (docs/design/0010-simulation.md).
* ``run_conformance`` checks an implementation of a port; the suites are in ``penstock.testing.conformance``.
"""

from penstock.testing.conformance import run_conformance
from penstock.testing.fakes import FakeClock, InlineOffload, SeededRng
from penstock.testing.server import ServerProcess
from penstock.testing.world import World

__all__ = ["FakeClock", "InlineOffload", "SeededRng", "ServerProcess", "World", "run_conformance"]
