"""F5 and F2: how long a store takes to recover its log, and from nothing to its first acknowledged event."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from crc32c import crc32c

import penstock
from bench.bounded_memory import fill_log
from bench.stages.bare_server import ANSWER, FRAME, HEAD, RECORD
from bench.stages.bare_server import APPEND as KIND
from bench.stages.sampling import cpu_s
from bench.stages.sides import Side
from penstock.app import embedded
from penstock.app.settings import EmbeddedSettings
from penstock.testing.server import ServerProcess

MIB = 1 << 20
RECORD_BYTES = 108
GROUP = 64  # records of one frame of the log: as many as were appended at once
_IMPORT = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \| ( *)(\S+)")


async def _open(data: Path, line: Connection) -> None:
    async with embedded.open_runtime(EmbeddedSettings(data=data, log_bytes=1 << 30)):
        line.send(None)
        line.recv()  # until its CPU was read


def _recover(data: str, line: Connection) -> None:
    """Open the store when asked to, and die."""
    line.send("imported")
    line.recv()
    asyncio.run(_open(Path(data), line))


def _recover_bare(data: str, line: Connection) -> None:
    """Read, check and apply each record of the bare log."""
    line.send("imported")
    line.recv()
    handle = os.open(data, os.O_RDONLY)
    room = memoryview(bytearray(8 * MIB))
    at, size = 0, os.fstat(handle).st_size
    lengths: dict[int, int] = {}
    while at < size:
        got = os.preadv(handle, [room], at)
        used = 0
        while got - used > RECORD.size:
            _, _, length, check = RECORD.unpack_from(room, used)
            end = used + RECORD.size + length
            if end > got:
                break
            if crc32c(room[used + RECORD.size : end]) != check:
                raise RuntimeError("the bare log is damaged")
            used += RECORD.size
            while used < end:
                _, body, segment, _ = FRAME.unpack_from(room, used)
                lengths[segment] = lengths.get(segment, 0) + body
                used += HEAD.size + body
        at += used
    line.send(None)
    line.recv()


def _bare_log(path: Path, total: int) -> None:
    body = FRAME.size - HEAD.size + RECORD_BYTES
    group = b"".join(FRAME.pack(KIND, body, 0, number) + bytes(RECORD_BYTES) for number in range(GROUP))
    record = RECORD.pack(0, 0, len(group), crc32c(group)) + group
    with path.open("wb") as out:
        for _ in range(total // (RECORD_BYTES * GROUP)):
            out.write(record)


@contextmanager
def recovery(directory: Path, scale: float, *, per_append: int = 1) -> Iterator[dict[str, Side]]:
    """Recovery of records of 100 bytes, 64 to a frame, that tier 2 has nothing of; a unit is a MiB of them."""
    total = int((96 << 20) * scale)
    directory.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    data = str(directory / "ours")
    filler = context.Process(target=fill_log, args=(data, total, RECORD_BYTES, per_append))
    filler.start()
    filler.join()
    _bare_log(directory / "bare.log", total)
    running: list[Any] = []
    turn = str(directory / "turn")

    def side(target: Callable[[str, Connection], None], place: str) -> Side:
        def prepare() -> None:
            for process, line in running:
                line.close()
                process.kill()
                process.join()
            # Each turn finds the log as the kill left it: after a recovery, some of it may be tiered.
            shutil.rmtree(turn, ignore_errors=True)
            if Path(place).is_dir():
                shutil.copytree(place, turn)
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(turn if Path(turn).exists() else place, theirs), daemon=True)
            process.start()
            ours.recv()
            made.pids = {"recovery": process.pid or 0}
            running[:] = [(process, ours)]

        def work() -> int:
            ((_, line),) = running
            line.send(None)
            line.recv()
            return total // MIB

        made = Side(pids={"recovery": 0}, work=work, prepare=prepare, repeats=False)
        return made

    try:
        yield {"product": side(_recover, data), "bare": side(_recover_bare, str(directory / "bare.log"))}
    finally:
        for process, _ in running:
            process.kill()
        shutil.rmtree(directory, ignore_errors=True)


_BARE = """
import sys, time, asyncio
from pathlib import Path
import uvloop
from bench.stages.bare_server import BareServer, BareConnection
async def main():
    server = BareServer(Path(sys.argv[1]), tiers=False, log_bytes=20 << 20)
    listening = await asyncio.get_running_loop().create_server(lambda: BareConnection(server), "127.0.0.1", 0)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await asyncio.sleep(60)
uvloop.run(main())
"""


def _import_ms(text: str) -> Counter[str]:
    """Milliseconds of CPU by top package, of ``-X importtime``: each module is counted without what it imports."""
    found: Counter[str] = Counter()
    for own, _, _, name in _IMPORT.findall(text):
        found[name.partition(".")[0]] += int(own) / 1000
    return found


def start(directory: Path, rounds: int) -> dict[str, Any]:
    """Seconds and CPU from the start of the process to the first acknowledged event, and imports by package."""
    rows: dict[str, list[float]] = {}

    def keep(name: str, value: float) -> None:
        rows.setdefault(name, []).append(value)

    for turn in range(rounds):
        data = directory / f"start-{turn}"
        server = ServerProcess(data)
        began = time.perf_counter()
        server.start()
        keep("product: wall until it serves, s", time.perf_counter() - began)
        pid = server.process.pid if server.process else 0
        keep("product: CPU until it serves, s", cpu_s(pid))
        with penstock.connect(server.address) as store:
            with store.create_stream("b/s", create_scope=True).writer() as writer:
                writer.write(b"x")
                writer.flush()
            keep("product: wall until the first event, s", time.perf_counter() - began)
            keep("product: CPU of the server until the first event, s", cpu_s(pid))
        server.kill()
        _bare_start(directory / f"bare-{turn}", keep)
    imports = subprocess.run(
        [
            sys.executable,
            "-X",
            "importtime",
            "-c",
            "import penstock.app.cli.main, penstock.app.cli.upkeep.servers, penstock.app.standalone",
        ],
        capture_output=True,
        text=True,
        check=False,
    ).stderr
    found = _import_ms(imports)
    return {
        "rows": {name: sorted(values)[len(values) // 2] for name, values in rows.items()},
        "imports_ms": dict(found.most_common(25)),
        "imports_total_ms": sum(found.values()),
    }


def _bare_start(directory: Path, keep: Callable[[str, float], None]) -> None:
    directory.mkdir(parents=True)
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", _BARE, str(directory)], stdout=subprocess.PIPE, text=True)
    try:
        port = int(process.stdout.readline()) if process.stdout else 0
        keep("bare: wall until it serves, s", time.perf_counter() - began)
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.sendall(FRAME.pack(KIND, FRAME.size - HEAD.size + 1, 0, 1) + b"x")
            if struct.unpack_from(">i", one.recv(ANSWER.size))[0] != KIND:
                raise RuntimeError("not acknowledged")
        keep("bare: wall until the first event, s", time.perf_counter() - began)
        keep("bare: CPU until the first event, s", cpu_s(process.pid))
    finally:
        process.kill()
        process.wait()
