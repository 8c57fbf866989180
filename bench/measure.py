"""How a figure is taken: repeated, with its spread, beside the physical limit of the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the table: median of the runs, their spread, and how it stands to its limit.

    ``who`` and ``durability`` stand where several stores are compared: ``F`` is ``fdatasync`` before the acknowledgement,
    ``O`` an acknowledgement from the page cache, ``M`` from memory.
    """

    id: str
    work: str
    unit: str
    median: float
    low: float
    high: float
    runs: int
    limit: str = ""
    ratio: float | None = None
    target: str = ""
    who: str = ""
    durability: str = ""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def beside(self, limit: str, ratio: float) -> Figure:
        """The same with a ratio that is not median over limit."""
        return replace(self, limit=limit, ratio=ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """What could not be measured, by name, and why not."""

    id: str
    work: str
    who: str
    reason: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


Row = Figure | Skipped


def figure(
    name: str,
    work: str,
    unit: str,
    values: Sequence[float],
    *,
    limit: tuple[str, float] | None = None,
    target: str = "",
    who: str = "",
    durability: str = "",
) -> Figure:
    """Summarise runs. ``limit`` is its name and value in the same unit; the ratio is median over limit."""
    median = statistics.median(values)
    return Figure(
        id=name,
        work=work,
        unit=unit,
        median=median,
        low=min(values),
        high=max(values),
        runs=len(values),
        limit=limit[0] if limit else "",
        ratio=median / limit[1] if limit and limit[1] else None,
        target=target,
        who=who,
        durability=durability,
    )


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def number(value: float) -> str:
    """Four digits, or all of them before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def show(rows: Sequence[Row]) -> str:
    """The table, as Markdown, and below it what was left out."""
    lines = ["| id | work | median | spread | unit | ratio | limit | target |", "|---|---|---|---|---|---|---|---|"]
    for item in rows:
        if isinstance(item, Figure):
            ratio = f"{item.ratio:.2f}" if item.ratio is not None else ""
            who = f": {item.who} ({item.durability})" if item.who else ""
            spread = f"{number(item.low)}-{number(item.high)} ({item.runs})"
            lines.append(
                f"| {item.id} | {item.work}{who} | {number(item.median)} | {spread} | {item.unit} "
                f"| {ratio} | {item.limit} | {item.target} |"
            )
    lines += [
        f"left out: {item.id}, {item.work}, {item.who}: {item.reason}" for item in rows if isinstance(item, Skipped)
    ]
    return "\n".join(lines)
