"""An event loop of asyncio whose clock jumps to the next timer: for tests without threads or sockets."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine

VIRTUAL_MAX_S = 3600.0
"""A test that needs more virtual seconds waits for something that never happens."""

_PASS_S = 100e-6
"""What one pass of the loop takes: work that never rests must not stop time."""


class _Jump(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Never waits: time passes instead."""

    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("no task can run and no timer is set")
        self.passed_s += max(_PASS_S, timeout)
        if self.passed_s > VIRTUAL_MAX_S:
            raise RuntimeError(f"the test takes more than {VIRTUAL_MAX_S} virtual seconds")
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.passed_s


def run_virtually(main: Coroutine[None, None, None]) -> None:
    """As ``asyncio.run``, without waiting: limits and pauses cost nothing, and a busy machine changes nothing."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        runner.run(main)
