"""The picture of the demo: a stream's size over time, its limits, and where its subscriber stood."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from penstock.model.values.dataclass import dataclass

_KILLS = ("#fcae91", "#bcbddc", "#a1d99b")
"""Colors of the times after kills."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The stream at one moment; bytes, seconds since the start."""

    at_s: float
    written: int
    head: int
    acknowledged: int
    disk: int
    events: int

    @property
    def held(self) -> int:
        return self.written - self.head


def draw(
    samples: Sequence[Sample], path: Path, *, minimum: int, maximum: int, kills: Sequence[tuple[str, float, float]]
) -> None:
    """Save the picture as PNG. ``kills``: what was killed, and between which times the writer waited."""
    # Its font cache would else go to the home directory.
    os.environ.setdefault("MPLCONFIGDIR", str(path.parent / "logs" / "matplotlib"))
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    mb = 1e6
    at = [item.at_s for item in samples]
    figure, (upper, lower) = plt.subplots(
        2, 1, sharex=True, figsize=(10, 7), height_ratios=(3, 2), layout="constrained"
    )
    upper.fill_between(
        at, [item.held / mb for item in samples], color="#9ecae1", label="held by the stream (tail - head)"
    )
    upper.plot(at, [item.disk / mb for item in samples], color="#08519c", lw=1.4, label="chunks on disk (du)")
    upper.plot(
        at,
        [(item.written - item.acknowledged) / mb for item in samples],
        color="#d94801",
        lw=1.6,
        label="not yet acknowledged by subscriber 'delays'",
    )
    upper.axhline(minimum / mb, color="#31a354", ls="--", lw=1.2, label=f"retention min {minimum / mb:.0f} MB")
    upper.axhline(maximum / mb, color="#a50f15", ls="--", lw=1.2, label=f"retention max {maximum / mb:.0f} MB")
    upper.set_ylabel("MB")
    upper.set_title("A Spark query is a retention subscriber: the stream keeps what the query has not consumed")
    lower.plot(at, [item.written / mb for item in samples], color="black", lw=1.6, label="tail: written")
    lower.plot(at, [item.acknowledged / mb for item in samples], color="#d94801", lw=1.6, label="subscriber 'delays'")
    lower.plot(at, [item.head / mb for item in samples], color="#3182bd", lw=1.6, label="head: truncated up to here")
    lower.set_ylabel("MB since the beginning")
    lower.set_xlabel("seconds")
    for (what, start, end), color in zip(kills, itertools.cycle(_KILLS), strict=False):
        for axis in (upper, lower):
            axis.axvspan(start, end, color=color, alpha=0.5, label=f"{what} killed (kill -9): the writer waits")
    upper.legend(loc="upper left", fontsize=8)
    lower.legend(loc="upper left", fontsize=8)
    for axis in (upper, lower):
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
