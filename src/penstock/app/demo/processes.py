"""Child processes of the demo: each has a log, is watched, and ends with the demo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.model.errors import UnavailableError

# Makes the kernel kill the child when the demo dies for any reason. The child sets this itself and then becomes the program:
# between fork and exec it would be unsafe, because gRPC runs threads here. 1 is PR_SET_PDEATHSIG, 9 is SIGKILL.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


_TERM_S = 15.0
_LINGER_S = 5.0


class Child:
    """A process that prints one JSON object per line. ``last`` holds the newest value of each name.

    It leads its own session: Ctrl-C reaches only the demo, and the child can be ended with all processes that it started.
    """

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
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        stdout = self.process.stdout
        if stdout is None:
            return
        with stdout:
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
        """``kill -9`` the process and all processes that it started."""
        self.process.kill()
        self._signal(signal.SIGKILL)
        self.process.wait()
        self._release()

    def close_input(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()

    def finish(self, timeout_s: float) -> None:
        """Wait until the process succeeds. Otherwise raises UnavailableError with the log's last lines."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise UnavailableError(f"the {self.name} did not end in time; {self._end_of_log()}") from None
        self._reader.join(5)
        if status:
            raise UnavailableError(f"the {self.name} failed with status {status}; {self._end_of_log()}")

    def check(self) -> None:
        """Raises UnavailableError if the process has failed."""
        if self.process.poll():
            self.finish(1)

    def stop(self) -> None:
        """End the process and those that it started, by force if they do not end by themselves."""
        if self.running:
            self._signal(signal.SIGTERM)
            try:
                self.process.wait(_TERM_S)
            except subprocess.TimeoutExpired:
                self.kill()
        give_up_at = time.monotonic() + _LINGER_S
        while self.members() and time.monotonic() < give_up_at:
            time.sleep(0.05)
        self._signal(signal.SIGKILL)
        self._release()

    def _release(self) -> None:
        self.close_input()
        self._reader.join(_LINGER_S)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.members():
            with suppress(ProcessLookupError):  # it ended by itself
                os.kill(process, number)

    def members(self) -> Sequence[int]:
        """The processes in the child's session. Its process group is not enough: Spark's Python daemon has its own."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                # After the name, which may hold any characters: state, parent, process group, session.
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue  # it ended meanwhile
            if int(session) == self.process.pid and state not in "ZX":
                found.append(int(entry.name))
        return found

    def _end_of_log(self) -> str:
        tail = self.tail()
        return f"its log {self._log} ends:\n{tail}" if tail else f"its log {self._log} is empty"

    def tail(self) -> str:
        """The last lines that it wrote to its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])
