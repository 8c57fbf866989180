"""A fleet-wide what-if as a picture: what would be deleted by scope and by day, and which subscribers would lose it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.app.plot import pyplot
from penstock.core.units import format_size
from penstock.spark.fleet.report import FleetReport, Side, Sums

_SCOPES_MAX = 15  # bars that a picture has room for
_DAYS_MAX = 120
_HURT_MAX = 10  # bars that a picture has room for
_TODAY, _CHANGE, _HURT = "#9ecae1", "#3182bd", "#a50f15"


def draw(report: FleetReport, path: Path) -> None:
    """Save the picture: png, svg or pdf. Raises InvalidArgumentError if matplotlib is not installed."""
    with pyplot(path) as plt:
        figure, axes = plt.subplot_mosaic(
            [["scopes", "days"], ["scopes", "hurt"]], figsize=(12, 7.5), width_ratios=(2, 3), layout="constrained"
        )
        figure.suptitle("\n".join(textwrap.wrap(title(report), 130)), fontsize=11)
        sides = [("today", report.today, _TODAY)]
        if report.change is not None:
            sides.append(("with the change", report.change, _CHANGE))
        _bars(axes["scopes"], [(label, side.scopes, color) for label, side, color in sides])
        _days(axes["days"], sides)
        _hurt(axes["hurt"], sides[-1][1])
        for axis in axes.values():
            axis.grid(alpha=0.25)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        plt.close(figure)


def title(report: FleetReport) -> str:
    """The content of the picture in one sentence."""
    found = report.today.total if report.change is None else report.change.total
    said = f"{found.losing:,} of {report.streams:,} streams would lose {format_size(found.bytes)}"
    if report.change is None:
        return f"{said} by the policies in force"
    return f"{report.sentence}: {said}; today {format_size(report.today.total.bytes)}"


def _most(scopes: Mapping[str, Sums]) -> list[str]:
    losing = [name for name, found in scopes.items() if found.bytes]
    return sorted(losing, key=lambda name: (-scopes[name].bytes, name))[:_SCOPES_MAX]


def _bars(axis: Any, sides: Sequence[tuple[str, Mapping[str, Sums], str]]) -> None:
    names = _most(sides[-1][1])[::-1]
    height = 0.8 / len(sides)
    for place, (label, scopes, color) in enumerate(sides):
        sizes = [scopes[name].bytes if name in scopes else 0 for name in names]
        # The later side is drawn above the earlier one, in reading order.
        at = [row + 0.4 - height / 2 - place * height for row in range(len(names))]
        axis.barh(at, sizes, height=height, color=color, label=label)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_title(
        "deleted data by scope: the largest" if len(names) == _SCOPES_MAX else "deleted data by scope", fontsize=10
    )
    _sizes(axis.xaxis)
    if names:
        axis.legend(loc="lower right", fontsize=8)


def _days(axis: Any, sides: Sequence[tuple[str, Side, str]]) -> None:
    days = sorted({day for _, side, _ in sides for day in side.days})[-_DAYS_MAX:]
    width = 0.8 / len(sides)
    for place, (_, side, color) in enumerate(sides):
        sizes = [side.days[day].bytes if day in side.days else 0 for day in days]
        axis.bar([row - 0.4 + width * (place + 0.5) for row in range(len(days))], sizes, width=width, color=color)
    shown = range(0, len(days), max(1, len(days) // 8))
    axis.set_xticks(list(shown), [days[place] for place in shown], fontsize=8, rotation=20)
    axis.set_title("deleted data by the day it was written", fontsize=10)
    _sizes(axis.yaxis)


def _hurt(axis: Any, side: Side) -> None:
    items = list(side.hurt[:_HURT_MAX])[::-1]
    axis.barh(
        [f"{item['subscriber']} ({item['rule']})" for item in items], [item["bytes"] for item in items], color=_HURT
    )
    axis.set_title("unread data that subscribers lose" if items else "no subscriber loses anything unread", fontsize=10)
    axis.tick_params(axis="y", labelsize=8)
    _sizes(axis.xaxis)


def _sizes(axis: Any) -> None:
    axis.set_major_formatter(lambda size, _: format_size(size) if size >= 0 else "")
    axis.set_tick_params(labelsize=8)
