"""Two pictures of a run: ours against physical limits and what is wanted, and ours against other stores.

python -m bench --draw bench/results.json       draws docs/bench-limits.png and docs/bench-peers.png again
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]

# Colours that can be distinguished without colour vision; the letters stand beside them.
COLOURS = {"F": "#0072b2", "O": "#e69f00", "M": "#cc79a7"}
CLASSES = {"F": "F: fdatasync before the acknowledgement", "O": "O: page cache", "M": "M: memory"}
_MET, _MISSED = "#009e73", "#d55e00"
_TARGET = re.compile(r"^(>=|<=)\s*([\d.,]+)\s*(\S+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How far a row is towards what is wanted: 1 is reached, 2 is twice as good, 0.5 half as good."""

    label: str
    reached: float
    reported: str


def score(row: Mapping[str, Any]) -> Score | None:
    """None: the row has no target, or one that this cannot read.

    A target with a unit is one of the median itself; a bare number is one of the ratio, where the row has one.
    """
    found = _TARGET.match(str(row.get("target", "")))
    if found is None or row.get("who"):
        return None
    wanted = float(found[2].replace(",", "")) * {"M": 1e6, "k": 1e3}.get(found[3], 1)
    of_ratio = found[3] is None and row.get("ratio") is not None
    value = float(row["ratio"] if of_ratio else row["median"])
    if value <= 0 or wanted <= 0:
        return None
    reached = value / wanted if found[1] == ">=" else wanted / value
    kind = str(row["unit"]).rpartition(" ")[2]
    work = f"{row['work']}, {kind}" if kind in ("p50", "p99") else str(row["work"])
    reported = f"{_short(value)} {row['unit']}"
    if row.get("ratio") is not None:
        reported = f"{row['ratio']:.2f} of {row['limit']}" + ("" if of_ratio else f", {reported}")
    return Score(label=f"{row['id']}  {work}", reached=reached, reported=f"{reported}; wanted {row['target']}")


def _short(value: float) -> str:
    for step, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= step:
            return f"{value / step:.3g} {letter}"
    return f"{value:.3g}"


def draw(rows: Rows, directory: Path) -> list[Path]:
    """Draw the pictures that the rows suffice for. Creates the directory. Raises ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    directory.mkdir(parents=True, exist_ok=True)
    scores = [item for row in rows if "median" in row and (item := score(row)) is not None]
    contest = [row for row in rows if row.get("who") and "median" in row]
    made = []
    if scores:
        made.append(_limits(scores, directory / "bench-limits.png"))
    if contest:
        made.append(_peers(contest, directory / "bench-peers.png"))
    return made


def _limits(scores: Sequence[Score], path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(13, 1.2 + 0.3 * len(scores)), layout="constrained")
    places = range(len(scores))
    axes.barh(
        places,
        [item.reached - 1 for item in scores],
        left=1,
        color=[_MET if item.reached >= 1 else _MISSED for item in scores],
    )
    axes.set_xscale("log")
    low = min(0.5, *(item.reached for item in scores)) / 1.2
    high = max(2.0, *(item.reached for item in scores)) * 1.2
    axes.set_xlim(low, high * (high / low) ** 0.9)
    for place, item in zip(places, scores, strict=True):
        axes.text(max(1.0, item.reached) * 1.05, place, item.reported, va="center", fontsize=8)
    axes.axvline(1, color="black", linewidth=1)
    marks = [mark for mark in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= mark <= high]
    axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
    axes.minorticks_off()
    axes.set_yticks(places, [item.label for item in scores], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("times what is wanted (log scale): right of the line is better than wanted, left of it falls short")
    axes.set_title("Penstock against physical limits and targets, each limit measured in the same run")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _peers(rows: Rows, path: Path) -> Path:
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    works: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["id"] != "W6":
            works.setdefault((row["id"], row["work"], row["unit"]), []).append(row)
    official = [row for row in rows if row["id"] == "W6" and row["ratio"] is not None]
    columns = 3
    lines = max(1, -(-(len(works) + bool(official)) // columns))
    tallest = max([len(official), *(len(found) for found in works.values())])
    figure, grid = plt.subplots(
        lines, columns, figsize=(17, lines * (0.9 + 0.24 * tallest)), layout="constrained", squeeze=False
    )
    for axes in grid.flat[len(works) + bool(official) :]:
        axes.set_visible(False)
    if official:
        _official(grid.flat[len(works)], official)
    for axes, ((name, work, unit), found) in zip(grid.flat, works.items(), strict=False):
        places = range(len(found))
        medians = [row["median"] for row in found]
        axes.barh(places, medians, color=[COLOURS[row["durability"]] for row in found])
        for place, row in zip(places, found, strict=True):
            axes.hlines(place, row["low"], row["high"], color="black", linewidth=1)
            axes.text(max(row["high"], row["median"]) * 1.15, place, _short(row["median"]), va="center", fontsize=7)
        axes.set_xscale("log")
        axes.set_xlim(min(medians) / 3, max(row["high"] for row in found) * 6)
        axes.set_yticks(places, [f"{row['who']} ({row['durability']})" for row in found], fontsize=7)
        for text, row in zip(axes.get_yticklabels(), found, strict=True):
            text.set_fontweight("bold" if row["who"].startswith("ours") else "normal")
        axes.invert_yaxis()
        better = "more is better" if unit.endswith("/s") else "less is better"
        axes.set_title(f"{name}  {work}\n{unit}, {better}", fontsize=8, loc="left")
        axes.tick_params(axis="x", labelsize=7)
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    marks = [Patch(color=COLOURS[letter], label=CLASSES[letter]) for letter in COLOURS]
    figure.legend(handles=marks, loc="outside upper center", ncols=3, fontsize=9, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _official(axes: Any, rows: Rows) -> None:
    """W6 in one panel: how many times better ours is, by the same script of Pravega's own client."""
    places = range(len(rows))
    ratios = [row["ratio"] for row in rows]
    axes.barh(
        places, [ratio - 1 for ratio in ratios], left=1, color=[_MET if ratio >= 1 else _MISSED for ratio in ratios]
    )
    for place, ratio in zip(places, ratios, strict=True):
        axes.text(max(ratio, 1) * 1.1, place, f"{ratio:.2f}", va="center", fontsize=7)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(min(0.5, *ratios) / 1.3, max(2, *ratios) * 3)
    names = [f"{row['work'].partition(', one after')[0]} ({row['unit'].rpartition(' ')[2]})" for row in rows]
    axes.set_yticks(places, names, fontsize=7)
    axes.invert_yaxis()
    axes.set_title(
        f"W6  pravega's client, beside {rows[0]['who']} ({rows[0]['durability']})",
        fontsize=8,
        loc="left",
    )
    axes.set_xlabel("ours better by", fontsize=7)
    axes.tick_params(axis="x", labelsize=7)
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
