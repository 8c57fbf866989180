"""A client in a process of its own, asked over its standard input: see ``worker.py``."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.servers import ROOT, kill, spawn


class WorkError(Exception):
    """The client could not do what it was asked; its text is what it said."""


class ClientProcess:
    """``python -m bench.peers.MODULE ARGUMENTS``. Ends with us, and when asked for something that takes too long."""

    def __init__(self, python: str, module: str, arguments: Sequence[str], log: Path) -> None:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        self.process = spawn(
            [python, "-m", f"bench.peers.{module}", *arguments],
            log,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        self._answer(60)  # its imports are no part of anything measured

    def ask(self, do: str, *, limit_s: float = 60, **given: Any) -> Any:
        """Raises WorkError: it failed, it ended, or it took longer than ``limit_s`` and was ended."""
        if self.process.stdin is None or self.process.poll() is not None:
            raise WorkError("the client process has ended")
        self.process.stdin.write(json.dumps({"do": do, **given}) + "\n")
        self.process.stdin.flush()
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> Any:
        out = self.process.stdout
        deadline = time.monotonic() + limit_s
        if out is None or not select.select([out], [], [], max(0.0, deadline - time.monotonic()))[0]:
            self.close()
            raise WorkError(f"no answer within {limit_s:.0f} s")
        line = out.readline()
        if not line:
            raise WorkError("the client process has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        kill(self.process)
