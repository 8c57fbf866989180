"""A process that has imported everything and gives birth to servers: a real ``penstock standalone`` in a tenth of a second.

Each server is a process of its own from its first own step on, with the composition, sizes and signals of the command; only
the imports, most of the time of a start, were made before. ``restless`` ones tier and checkpoint several times a second.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from penstock.model.errors import UnavailableError

_HOLDABLE_SYNC_S = 0.002
"""Slower than what the store waits for in place."""
_LOOK_S = 0.01


class Nursery:
    """Starts servers on one data directory and two ports. Use it in a ``with`` block, which ends them.

    ``planted``: ``module:function`` of a bug, a patch that every server enters: what looks on must see it.
    ``minute_ms``: how long a minute of scaling by rate lasts.
    """

    def __init__(
        self, data: Path, controller_port: int, store_port: int, *, planted: str | None = None, minute_ms: int = 60_000
    ) -> None:
        self._settings = {
            "data": str(data),
            "controller_port": controller_port,
            "store_port": store_port,
            "planted": planted,
            "minute_ms": minute_ms,
        }
        self._gate = data.with_name(data.name + ".hold")
        self.log = data.with_name(data.name + ".log")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.server: int | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        if self._process.stdin is None or self._process.stdout is None:
            raise UnavailableError("the nursery has no pipes")
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise UnavailableError("the nursery is gone")
        found: dict[str, Any] = json.loads(line)
        return found

    def start(self, *, restless: bool, holdable: bool = False) -> None:
        """Returns once the server serves. Blocks. Raises UnavailableError with the end of its log.

        ``holdable``: its disk hangs from ``hold`` to ``let_go``, and is never so fast that syncs run in the event loop.
        """
        self.let_go()
        order = {"do": "start", "log": str(self.log), "restless": restless, **self._settings}
        answer = self._ask(order | {"gate": str(self._gate) if holdable else None})
        if not answer.get("serving"):
            raise UnavailableError("the server did not start", log=self.tail())
        self.server = int(answer["pid"])

    def kill(self) -> None:
        """``kill -9``, and wait until it is gone. Blocks. Raises UnavailableError where it had died before."""
        if self.server is None:
            return
        pid, self.server = self.server, None
        answer = self._ask({"do": "kill", "pid": pid})
        if answer["status"] != -signal.SIGKILL:
            raise UnavailableError("the server died by itself", status=answer["status"], log=self.tail())

    def signal(self, number: signal.Signals) -> None:
        if self.server is not None:
            os.kill(self.server, number)

    def hold(self) -> None:
        """From here on no sync of a holdable server ends."""
        self._gate.touch()

    def hangs(self) -> bool:
        """Whether a sync has come meanwhile."""
        return _met(self._gate).exists()

    def let_go(self) -> None:
        """Syncs that hang go on. Without effect where none was held."""
        self._gate.unlink(missing_ok=True)
        _met(self._gate).unlink(missing_ok=True)

    def tail(self) -> str:
        """The last lines of what servers have logged."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:]) if self.log.exists() else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            # At the end of its input it kills the server that is left, and ends.
            self._process.stdin.close()
        self._process.wait(20)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _met(gate: Path) -> Path:
    return gate.with_name(gate.name + ".met")


# --- inside ---------------------------------------------------------------------------------------------------------


def _hanging_at(gate: Path) -> Any:
    """A patch: a sync hangs as long as that file is there."""
    sync = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        time.sleep(_HOLDABLE_SYNC_S)
        while gate.exists():
            _met(gate).touch()
            time.sleep(_LOOK_S)
        sync(descriptor)

    return patch.object(os, "fdatasync", fdatasync)


def _serve(order: Mapping[str, Any], ready: int) -> None:
    from penstock.app import segments, standalone
    from penstock.app.settings import EmbeddedSettings, StandaloneSettings

    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    settings = StandaloneSettings(
        store=EmbeddedSettings(
            data=Path(order["data"]),
            memory_bytes=96 << 20,
            log_bytes=120 << 20,
            scaling_minute_ms=order["minute_ms"],
        ),
        controller_port=order["controller_port"],
        store_port=order["store_port"],
        http_port=0,
    )
    usual = segments.store_settings

    def restless(given: EmbeddedSettings) -> Any:
        return replace(
            usual(given),
            flush_bytes=4 << 10,
            flush_interval_s=0.1,
            checkpoint_interval_s=0.15,
            chunk_bytes=32 << 10,
            cache_bytes=64 << 10,
        )

    with ExitStack() as stack:
        stack.enter_context(patch.object(segments, "store_settings", restless if order["restless"] else usual))
        if order["gate"] is not None:
            stack.enter_context(_hanging_at(Path(order["gate"])))
        if order["planted"] is not None:
            module, _, name = order["planted"].partition(":")
            stack.enter_context(getattr(importlib.import_module(module), name)())
        standalone.run(settings, ready=partial(_tell, ready))


def _tell(ready: int, facts: Any) -> None:
    os.write(ready, json.dumps(facts).encode() + b"\n")


def _start(order: Mapping[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            _serve(order, writing)
            status = 0
        except BaseException as error:
            os.write(2, f"server ends: {error!r}\n".encode())
            raise
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as reported:
        line = reported.readline()
    if not line:
        os.waitpid(child, 0)
        return {"serving": False}
    return {"serving": True, "pid": child}


def _kill(pid: int) -> dict[str, Any]:
    os.kill(pid, signal.SIGCONT)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return {"status": os.waitstatus_to_exitcode(status)}


def main() -> None:
    """Orders in, one a line; an answer out for each."""
    import penstock.app.standalone  # noqa: F401 - what all servers share, and nothing that starts a thread

    alive: int | None = None
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "start":
            answer = _start(order)
            alive = answer.get("pid")
        else:
            answer, alive = _kill(order["pid"]), None
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    if alive is not None:
        _kill(alive)


if __name__ == "__main__":
    main()
