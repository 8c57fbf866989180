"""Child processes of the demo: started with a log each, watched, and gone when the demo is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.model.errors import UnavailableError

# Run between fork and exec this would be unsafe (gRPC has threads here), so the child does it to itself, then becomes
# the program: the kernel kills it when the demo dies, however it dies. 1 is PR_SET_PDEATHSIG, 9 is SIGKILL.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


class Child:
    """A process that prints one JSON object a line; ``last`` holds the newest values of each name."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, on_line: Callable[[str, dict[str, Any]], None]
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.last: dict[str, Any] = {}
        self._log = log
        self._on_line = on_line
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "MPLCONFIGDIR": str(log.parent / "matplotlib")}
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _DIE_WITH_PARENT, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        stdout = self.process.stdout
        if stdout is None:
            return
        for line in stdout:
            try:
                values = json.loads(line)
            except ValueError:
                with self._log.open("a") as log:
                    log.write(line)
                continue
            if isinstance(values, dict):
                self.last.update(values)
                self._on_line(self.name, values)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """``kill -9``."""
        self.process.kill()
        self.process.wait()

    def close_input(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()

    def finish(self, timeout_s: float) -> None:
        """Wait for a good end. Raises UnavailableError with the log's last lines otherwise."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise UnavailableError(f"the {self.name} did not end in time\n{self.tail()}", log=self._log) from None
        self._reader.join(5)
        if status:
            raise UnavailableError(f"the {self.name} failed\n{self.tail()}", status=status, log=self._log)

    def check(self) -> None:
        """Raises UnavailableError where the process has failed."""
        if self.process.poll():
            self.finish(1)

    def stop(self) -> None:
        """End it in good order, or else by force."""
        if self.running:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()

    def tail(self) -> str:
        """The last lines that it wrote to its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])
