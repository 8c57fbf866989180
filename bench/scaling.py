"""A stream that scales by rate while its load doubles each minute, stays, and then ends, drawn from a real store and clients.

    python -m bench.scaling --plot docs/scaling.png

A minute lasts ``--minute-ms``. A writer and a reader group are attached; the run fails unless each event is read once and
those of a key in order. Prints what was decided and when.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import penstock
from penstock.model.answers.scaling import StreamScaling
from penstock.model.policies import ScaleType, ScalingPolicy
from penstock.model.scaling import Heat

TARGET, FACTOR, KEYS = 200, 4, 200  # events/s for each segment, parts, routing keys
GROWING, HOLDING = 12, 25  # minutes in which the load doubles each minute, and in which it stays
COLOURS = {Heat.HOT: "#d1495b", Heat.WARM: "#edae49", Heat.COLD: "#30638e", Heat.NEW: "#c9d6df"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The stream at a moment; ``load`` in events per second of that moment."""

    minute: float
    load: float
    scaling: StreamScaling


async def write(stream: penstock.AsyncStream, minute_s: float, samples: list[Sample]) -> int:
    """1 event/s that doubles each minute, then as many for a while, then none; returns how many events."""
    written, began_s = 0, time.monotonic()
    async with stream.writer() as writer:
        while (minute := (time.monotonic() - began_s) / minute_s) < GROWING + HOLDING:
            grown = min(minute, GROWING)
            # The load after t minutes is 2**t a second; this is how many events are due by now.
            due = int(minute_s * ((2**grown - 1) / math.log(2) + (minute - grown) * 2**GROWING))
            for number in range(written, due):
                await writer.write(f"k{number % KEYS}:{number}", f"k{number % KEYS}")
            written = max(written, due)
            samples.append(Sample(minute=minute, load=2**grown, scaling=await stream.explain_scaling()))
            await asyncio.sleep(minute_s / 10)
    minute = GROWING + HOLDING
    while minute < GROWING + HOLDING + 10 or len(samples[-1].scaling.segments) > 1:
        minute = (time.monotonic() - began_s) / minute_s
        samples.append(Sample(minute=minute, load=0, scaling=await stream.explain_scaling()))
        await asyncio.sleep(minute_s / 10)
    return written


def check(events: Sequence[bytes], written: int) -> None:
    """Each event once, in order per key. Raises SystemExit."""
    last: dict[bytes, int] = defaultdict(lambda: -1)
    for event in events:
        key, _, number = event.partition(b":")
        if int(number) <= last[key]:
            raise SystemExit(f"out of order: {event!r} after {last[key]}")
        last[key] = int(number)
    if len(events) != written:
        raise SystemExit(f"{written} events written, {len(events)} read")


async def run(directory: Path, minute_ms: int) -> tuple[list[Sample], int]:
    samples: list[Sample] = []
    got: list[bytes] = []
    policy = ScalingPolicy(type=ScaleType.EVENTS_PER_S, target_rate=TARGET, factor=FACTOR)
    async with penstock.open_async(directory, scaling_minute_ms=minute_ms) as store:
        stream = await store.create_stream("bench/scaling", scaling=policy, create_scope=True)
        group = await store.reader_group("readers", ["bench/scaling"])

        async def read() -> None:
            async with group.reader("one") as reader:
                async for event in reader:
                    got.append(event.data)  # noqa: PERF401 (others look at the list meanwhile)

        reading = asyncio.ensure_future(read())
        written = await write(stream, minute_ms / 1000, samples)
        for _ in range(300):
            if len(got) < written:
                await asyncio.sleep(0.1)
        reading.cancel()
        await asyncio.wait([reading])
    check(got, written)
    return samples, written


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Above the load and the rate of each segment, below the segments by their keys and what their rates ask for."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    figure, (rates, keys) = plt.subplots(2, 1, figsize=(11, 7), sharex=True, layout="constrained")
    minutes = [item.minute for item in samples]
    rates.plot(
        minutes, [item.load or float("nan") for item in samples], color="black", lw=2, label="load of the stream"
    )
    lines: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for item in samples:
        for one in item.scaling.segments:
            if one.rates is not None:
                lines[one.range.segment].append((item.minute, one.rates.two))
    for line in lines.values():
        rates.plot(*zip(*line, strict=True), lw=0.8, alpha=0.7)
    rates.axhline(TARGET, color="grey", ls="--", label=f"target, {TARGET} events/s for each segment")
    rates.set_yscale("symlog", linthresh=10)
    rates.set_ylim(bottom=0)
    rates.set_ylabel("events/s; thin: each segment over 2 min")
    rates.legend(loc="upper right")
    for item, after in pairwise(samples):
        _tiles(keys, item, after.minute)
    keys.set_ylim(0, 1)
    keys.set_ylabel("segments by key range")
    keys.set_xlabel("minutes")
    keys.legend(handles=[Patch(color=COLOURS[heat], label=heat.value) for heat in Heat], loc="upper right", ncols=4)
    figure.savefig(path, dpi=110)


def _tiles(axes: Any, item: Sample, until: float) -> None:
    for one in item.scaling.segments:
        low, high = one.range.keys.low, one.range.keys.high
        axes.fill_between([item.minute, until], low, high, color=COLOURS[one.heat], lw=0)
        axes.plot([item.minute, until], [high, high], color="white", lw=0.7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, required=True, help="the picture, .png")
    parser.add_argument("--minute-ms", type=int, default=1000)
    parser.add_argument("--directory", type=Path, default=Path("data/bench-scaling"))
    given = parser.parse_args()
    try:
        samples, written = asyncio.run(run(given.directory, given.minute_ms))
    finally:
        shutil.rmtree(given.directory, ignore_errors=True)
    epochs = 0
    for item in samples:
        if item.scaling.epoch > epochs:
            epochs = item.scaling.epoch
            print(f"{item.minute:6.1f} min  {len(item.scaling.segments):3} segments  {item.scaling.changes[-1].reason}")
    print(f"{written} events written, each read once and in order per key; {epochs} changes")
    draw(samples, given.plot)


if __name__ == "__main__":
    main()
