"""How a figure is taken: repeated, with its spread, beside the physical limit of the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the table: median of the runs, their spread, and how it stands to its limit."""

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

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def figure(
    name: str,
    work: str,
    unit: str,
    values: Sequence[float],
    *,
    limit: tuple[str, float] | None = None,
    target: str = "",
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


def show(figures: Sequence[Figure]) -> str:
    """The table, as Markdown."""
    lines = ["| id | work | median | spread | unit | ratio | limit | target |", "|---|---|---|---|---|---|---|---|"]
    for item in figures:
        ratio = f"{item.ratio:.2f}" if item.ratio is not None else ""
        lines.append(
            f"| {item.id} | {item.work} | {item.median:,.4g} | {item.low:,.4g}-{item.high:,.4g} ({item.runs}) "
            f"| {item.unit} | {ratio} | {item.limit} | {item.target} |"
        )
    return "\n".join(lines)
