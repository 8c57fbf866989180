"""What planning a Spark read costs as a stream grows: driver, store and network, over paper streams up to a tebibyte.

    python -m bench.plans --out bench/plans.json
    python -m bench.plans --out bench/plans.json --draw docs/plans.png      only draws what is there

A store of its own holds the streams (``bench/plan_world.py``). Each figure is of a new driver process and a restarted
store. ``--source DIR --label before`` measures the code of another working copy, for the same picture.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import plan_world
from penstock.model.names import StreamName
from penstock.spark.connect import dial
from penstock.testing.server import ServerProcess

GIB_CHUNKS = 64  # chunks of 16 MiB
SIZES_GIB = (16, 64, 256, 1024)
SCALINGS = (10, 50, 200)
WIDTHS = (20, 200, 2000)
HERE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one call. ``partition_bytes``: of the largest pickled partition."""

    world: str
    size: int
    call: str
    seconds: float
    driver_mb: float
    partitions: int
    pickled_bytes: int
    partition_bytes: int
    replies: int
    reply_bytes: int
    offset_bytes: int = 0
    driver_cpu_s: float = 0
    store_cpu_s: float = 0
    store_mb: float = 0


# --- the driver, in a process of its own -------------------------------------------------------------------------


def measure_driver(address: str, stream: str, call: str) -> Iterator[dict[str, Any]]:
    """Run one call as Spark's driver does. Yields its costs."""
    from penstock.codec.values import Call
    from penstock.spark.source import PenstockSource

    replies: list[int] = []
    decode = Call.decode_reply

    def counted(self: Any, data: bytes) -> Any:
        replies.append(len(data))
        return decode(self, data)

    Call.decode_reply = counted  # type: ignore[method-assign]
    options = {"controller": address, "path": stream, "start_stream_cut": "earliest"}
    source = PenstockSource(options)
    schema = source.schema()
    reader = source.reader(schema) if call == "batch" else source.streamReader(schema)

    def taken(name: str, work: Any) -> tuple[Any, dict[str, Any]]:
        replies.clear()
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began, began_cpu_s = time.perf_counter(), time.process_time()
        found = work()
        costs = {
            "call": name,
            "driver_cpu_s": time.process_time() - began_cpu_s,
            "seconds": time.perf_counter() - began,
            "driver_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024,
            "replies": len(replies),
            "reply_bytes": sum(replies),
        }
        return found, costs

    def parts(found: Any) -> dict[str, int]:
        sizes = [len(pickle.dumps(item)) for item in found]
        return {"partitions": len(sizes), "pickled_bytes": sum(sizes), "partition_bytes": max(sizes, default=0)}

    if call == "batch":
        found, costs = taken("batch plan", reader.partitions)
        yield costs | parts(found)
        return
    start, costs = taken("initialOffset", reader.initialOffset)
    yield costs | {"offset_bytes": len(json.dumps(start))}
    while True:
        end, costs = taken("latestOffset", lambda at=start: reader.latestOffset(at, reader.getDefaultReadLimit()))
        yield costs | {"offset_bytes": len(json.dumps(end))}
        if end == start:
            return
        found, costs = taken("partitions", lambda at=start, to=end: reader.partitions(at, to))
        yield costs | parts(found)
        start = end


# --- the picture -------------------------------------------------------------------------------------------------

PANELS = (
    ("GiB", "batch plan", "driver_mb", "driver's memory, MB", "stream, GiB (1,024 blocks each)"),
    ("GiB", "batch plan", "store_mb", "store's memory, MB", "stream, GiB (1,024 blocks each)"),
    ("segments with little", "partitions", "replies", "calls of a micro-batch", "segments with 64 KiB each"),
    ("scalings", "batch plan", "replies", "calls of a batch plan", "scalings of ten segments"),
    ("scalings", "partitions", "replies", "calls of a micro-batch", "scalings of ten segments"),
)


def draw(found: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Growth before and after, one panel for each kind."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(17, 3.4), layout="constrained")
    axes = figure.subplots(1, len(PANELS))
    for axis, (world, call, value, label, below) in zip(axes, PANELS, strict=True):
        for name, colour in (("before", "#d55e00"), ("after", "#0072b2")):
            points: dict[int, list[float]] = {}
            for cost in found.get(name, ()):
                if (cost["world"], cost["call"]) == (world, call):
                    points.setdefault(cost["size"], []).append(cost[value])
            sizes = sorted(points)
            if not sizes:
                continue
            axis.plot(sizes, [median(points[size]) for size in sizes], "o-", color=colour, label=name)
        axis.set_title(label, fontsize=10)
        axis.set_xlabel(below, fontsize=9)
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False)
    figure.savefig(path, dpi=110)
    print(f"drawn: {path}")


# --- the store beside it -----------------------------------------------------------------------------------------


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _mb(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def run_driver(server: ServerProcess, source: Path, world: str, size: int, stream: str, call: str) -> list[Cost]:
    """Restart the store, and measure the calls of a new driver."""
    server.stop()
    server.start()
    assert server.process is not None
    pid = server.process.pid
    time.sleep(2)
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    cpu_s, mb = _cpu_s(pid), _mb(pid, "VmRSS")
    command = [sys.executable, "-m", "bench.plans", "--driver", server.address, stream, call]
    done = subprocess.run(command, env=_env(source), cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    empty = {"partitions": 0, "pickled_bytes": 0, "partition_bytes": 0}
    found = [Cost(world=world, size=size, **(empty | json.loads(line))) for line in done.stdout.splitlines()]
    store = {"store_cpu_s": _cpu_s(pid) - cpu_s, "store_mb": _mb(pid, "VmHWM") - mb}
    costs = [Cost(**(asdict(item) | store)) for item in found]
    for item in costs[:6]:
        print(json.dumps(asdict(item)), flush=True)
    return costs


def _env(source: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(source / "src")}


@contextmanager
def _server(directory: Path, source: Path) -> Iterator[ServerProcess]:
    os.environ["PYTHONPATH"] = str(source / "src")
    with ServerProcess(directory / "store") as server:
        yield server


def fill(address: str, work: Any) -> None:
    """Run ``work(services)`` against the store."""

    async def run() -> None:
        services = await dial(address)
        try:
            await work(services)
        finally:
            await services.close()

    asyncio.run(run())


def measure(given: argparse.Namespace, directory: Path) -> list[Cost]:
    source = Path(given.source)
    costs: list[Cost] = []
    with _server(directory, source) as server:
        for size in given.sizes:
            stream = StreamName("paper", f"size{size}")

            async def sized(services: Any, stream: StreamName = stream, size: int = size) -> None:
                await plan_world.make_stream(services, stream, 4)
                await plan_world.add_chunks(services, stream, size * GIB_CHUNKS // 4)

            fill(server.address, sized)
            for call in given.calls:
                costs += run_driver(server, source, "GiB", size, str(stream), call)
        for size in given.widths:
            stream = StreamName("paper", f"width{size}")

            async def wide(services: Any, stream: StreamName = stream, size: int = size) -> None:
                await plan_world.make_stream(services, stream, size)
                await plan_world.add_chunks(services, stream, 1)

            fill(server.address, wide)
            for call in given.calls:
                costs += run_driver(server, source, "segments", size, str(stream), call)
            stream = StreamName("paper", f"few{size}")

            async def few(services: Any, stream: StreamName = stream, size: int = size) -> None:
                await plan_world.make_stream(services, stream, size)
                await plan_world.add_chunks(services, stream, 1, blocks=1, block_bytes=64 << 10)

            fill(server.address, few)
            for call in given.calls:
                costs += run_driver(server, source, "segments with little", size, str(stream), call)
        for size in given.scalings:
            stream = StreamName("paper", f"epochs{size}")

            async def scaled(services: Any, stream: StreamName = stream, size: int = size) -> None:
                await plan_world.make_stream(services, stream, 10)
                await plan_world.scale(services, stream, size)

            fill(server.address, scaled)
            for call in given.calls:
                costs += run_driver(server, source, "scalings", size, str(stream), call)
    return costs


def numbers(text: str) -> Sequence[int]:
    return [int(item) for item in text.split(",") if item]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", nargs=3, metavar=("ADDRESS", "STREAM", "CALL"), help=argparse.SUPPRESS)
    parser.add_argument("--source", default=str(HERE), metavar="DIR", help="the working copy to measure")
    parser.add_argument("--label", default="after", choices=("before", "after"))
    parser.add_argument("--sizes", type=numbers, default=SIZES_GIB, help="GiB in four segments")
    parser.add_argument("--widths", type=numbers, default=WIDTHS, help="segments of 16 MiB")
    parser.add_argument("--scalings", type=numbers, default=SCALINGS, help="scalings of ten segments each")
    parser.add_argument("--calls", type=lambda text: text.split(","), default=["batch", "stream"])
    parser.add_argument("--out", metavar="FILE", help="add the figures to this JSON file")
    parser.add_argument("--draw", metavar="FILE", help="draw the figures in the file of --out, and measure nothing")
    given = parser.parse_args()
    if given.draw:
        draw(json.loads(Path(given.out).read_text()), Path(given.draw))
        return
    if given.driver:
        for cost in measure_driver(*given.driver):
            print(json.dumps(cost), flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="penstock-plans-") as directory:
        costs = measure(given, Path(directory))
    if given.out:
        path = Path(given.out)
        known: Mapping[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        merged = {**known, given.label: [*known.get(given.label, ()), *(asdict(item) for item in costs)]}
        path.write_text(json.dumps(merged, indent=1) + "\n")


if __name__ == "__main__":
    main()
