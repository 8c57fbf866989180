"""Servers that start without importing: each one is forked from a process that has imported everything.

A server imports for two thirds of its start. What is killed is a process of its own as before, with the same command.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from penstock.model.errors import UnavailableError
from penstock.testing.server import ServerProcess

_POLL_S = 0.01

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["penstock.app.cli.main", "penstock.app.standalone", "penstock.app.cli.upkeep.servers", "uvicorn"]
)


class PreloadedServer(ServerProcess):
    """As ``ServerProcess``, for one process without workers."""

    _forked: BaseProcess | None = None

    def start(self, timeout_s: float = 90) -> float:
        started = time.monotonic()
        self.data.parent.mkdir(parents=True, exist_ok=True)
        out = self.data.with_name(self.data.name + ".out")
        out.write_bytes(b"")
        command = [
            *("standalone", "--json", "--data", str(self.data)),
            *("--controller-port", str(self.controller_port), "--store-port", str(self.store_port)),
            *("--http-port", "0"),
            *self.options,
        ]
        self._forked = _context.Process(target=_serve, args=(command, out, self.log), daemon=True)
        self._forked.start()
        while not (text := out.read_text()).endswith("\n"):
            if time.monotonic() - started > timeout_s or not self._forked.is_alive():
                self.kill()
                raise UnavailableError("the server did not start", log=self.tail())
            time.sleep(_POLL_S)
        self.http_port = int(json.loads(text)["http"].rpartition(":")[2])
        return time.monotonic() - started

    def kill(self) -> None:
        forked, self._forked = self._forked, None
        if forked is not None:
            forked.kill()
            forked.join()
            forked.close()


def _serve(command: list[str], out: Path, errors: Path) -> None:
    for path, number in ((out, 1), (errors, 2)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = ["penstock", *command]
    from penstock.__main__ import main

    main()
