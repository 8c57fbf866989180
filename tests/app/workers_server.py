"""What the tests of a real server with workers share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.app.remote import open_remote
from penstock.model.names import StreamName, segment_name
from penstock.testing.server import ServerProcess

PATIENCE_S = 120.0


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def places(server: ServerProcess, stream: Any) -> dict[str, str]:
    """Where clients are sent for each active segment."""

    async def ask() -> dict[str, str]:
        async with open_remote(server.address) as (_, controller):
            found = {}
            for item in stream.describe().segments:
                name = segment_name(StreamName.parse(str(stream.name)), item.segment)
                endpoint = await controller.layout.endpoint(name)
                found[name] = f"{endpoint.host}:{endpoint.port}"
            return found

    return asyncio.run(ask())


def pids(server: ServerProcess) -> dict[int, int]:
    """The processes of the workers, as the kernel has them: by number."""
    found = {}
    assert server.process is not None
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == server.process.pid and b"penstock.app.workers.process" in words and alive(int(entry.name)):
            found[int(words[5])] = int(entry.name)
    return found
