"""A stream over time as a picture or in a terminal: its size, its limits, every subscriber, and what is deleted next.

Positions are bytes since the beginning of the stream's history. Times are milliseconds since the Unix epoch.
"""

from __future__ import annotations

import os
import tempfile
import textwrap
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.core.policies.sentence import sentence
from penstock.core.units import format_duration, format_size
from penstock.model.answers.forecast import HistoryPoint
from penstock.model.errors import InvalidArgumentError, UnsupportedError
from penstock.model.retention import EffectivePolicy
from penstock.model.values.dataclass import dataclass

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Store

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONE_WINDOW: Final = timedelta(minutes=5)
_MIN_COLOR, _MAX_COLOR = "#31a354", "#a50f15"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The stream at one time: how much was written, and where it began."""

    time_ms: int
    written: int
    head: int

    @property
    def size(self) -> int:
        return self.written - self.head


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The data of a plot. ``points``: oldest first, at least one, the last one now. ``subscribers``: the position of
    each, None if it has published none. ``next_head``: where the next cycle truncates, None: nowhere."""

    stream: str
    points: Sequence[Point]
    policy: EffectivePolicy
    subscribers: Mapping[str, int | None]
    next_head: int | None
    next_due_ms: int | None
    why: str

    @property
    def now(self) -> Point:
        return self.points[-1]

    @property
    def says(self) -> str:
        return sentence(self.policy, cycle_ms=None)

    def place_at(self, time_ms: int) -> int:
        """How much had been written at that time. For times before the first known point, the position of that point."""
        index = bisect_right([point.time_ms for point in self.points], time_ms)
        return self.points[max(0, index - 1)].written

    def limits(self) -> Mapping[str, int]:
        """Where the minimum and the maximum would put the head now; an age beyond all known points leaves it in
        place."""
        policy, now = self.policy, self.now
        found: dict[str, int] = {}
        for name, size in (("min_bytes", policy.min_bytes), ("max_bytes", policy.max_bytes)):
            if size is not None and policy.given(f"retain.{name}"):
                found[f"{name[:3]} {format_size(size)}"] = max(0, now.written - size)
        for name, age in (("min_age", policy.min_age_ms), ("max_age", policy.max_age_ms)):
            if age is not None and policy.given(f"retain.{name}_s"):
                since = now.time_ms - age
                place = now.head if since < self.points[0].time_ms else self.place_at(since)
                found[f"{name[:3]} {format_duration(age)}"] = place
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "history": [[point.time_ms, point.written, point.head] for point in self.points],
            "limits": dict(self.limits()),
            "subscribers": dict(self.subscribers),
            "next_head": self.next_head,
            "next_due_ms": self.next_due_ms,
            "sentence": self.says,
            "why": self.why,
        }


def gather(store: Store, stream: str, *, now_ms: int) -> Picture:
    """The data of the plot. If the store keeps no history, only the current state of the stream."""
    handle = store.stream(stream)
    found = handle.describe()
    decision = handle.retention.plan()
    history: Sequence[HistoryPoint] = ()
    with suppress(UnsupportedError):
        forecast = handle.retention.forecast()
        # Use the store's clock, as its points do.
        history, now_ms = forecast.history, forecast.at_ms
    head = found.written_bytes - found.size_bytes
    now = Point(time_ms=now_ms, written=found.written_bytes, head=head)
    # A clock that went back, or a point newer than the query, must not bend the line.
    points = [
        Point(time_ms=item.time_ms, written=item.size_bytes, head=item.head_bytes)
        for item in history
        if item.time_ms < now_ms
    ]
    points = sorted((p for p in points if p.written <= now.written), key=lambda p: p.time_ms)
    return Picture(
        stream=stream,
        points=[*points, now],
        policy=handle.retention.effective(),
        subscribers={
            item.name: None if item.cut is None else found.written_bytes - item.lag_bytes
            for item in sorted(found.subscribers, key=lambda item: item.name)
        },
        next_head=head + decision.frees_bytes if decision.frees_bytes else None,
        next_due_ms=decision.next_due_ms,
        why=decision.why,
    )


# --- picture ----------------------------------------------------------------------------------------------


def draw_png(picture: Picture, path: Path) -> None:
    """Save the picture. Raises InvalidArgumentError where matplotlib is not there."""
    with pyplot(path) as plt:
        _draw(picture, path, plt)


@contextmanager
def pyplot(path: Path) -> Iterator[Any]:
    """``matplotlib.pyplot``, set to write files, for a picture at ``path``. Raises InvalidArgumentError without it."""
    with _scratch_settings():
        try:
            import matplotlib
        except ImportError as error:
            raise InvalidArgumentError("a picture needs matplotlib: pip install matplotlib", png=str(path)) from error
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        yield plt


@contextmanager
def _scratch_settings() -> Iterator[None]:
    """Keep matplotlib's settings and font cache in a temporary directory, so that no other directory is changed."""
    if "MPLCONFIGDIR" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="penstock-plot-") as scratch:
        os.environ["MPLCONFIGDIR"] = scratch
        try:
            yield
        finally:
            os.environ.pop("MPLCONFIGDIR", None)


def _draw(picture: Picture, path: Path, plt: Any) -> None:
    at = [_EPOCH + timedelta(milliseconds=point.time_ms) for point in picture.points]
    figure, (upper, lower) = plt.subplots(
        2, 1, sharex=True, figsize=(10, 7.5), height_ratios=(2, 3), layout="constrained"
    )
    upper.set_title("\n".join(textwrap.wrap(f"{picture.stream}: {picture.says}", 120)), fontsize=10)
    upper.fill_between(at, [point.size for point in picture.points], color="#9ecae1", step="post", label="size")
    policy = picture.policy
    for name, size, color in (("min", policy.min_bytes, _MIN_COLOR), ("max", policy.max_bytes, _MAX_COLOR)):
        if size is not None and policy.given(f"retain.{name}_bytes"):
            upper.axhline(size, color=color, ls="--", lw=1.2, label=f"{name} {format_size(size)}")
    lower.plot(at, [point.written for point in picture.points], color="black", lw=1.6, marker=".", label="written")
    heads = [point.head for point in picture.points]
    lower.step(at, heads, color="#3182bd", lw=1.6, where="post", label="head")
    for index, (name, place) in enumerate(picture.limits().items()):
        color = _MAX_COLOR if name.startswith("max") else _MIN_COLOR
        lower.axhline(place, color=color, ls=("--", ":")[index % 2], label=name)
    for index, (name, position) in enumerate(picture.subscribers.items()):
        if position is not None:
            color = f"C{index % 9 + 1}"
            lower.axhline(position, color=color, lw=0.8)
            lower.plot([at[-1]], [position], marker="<", color=color, label=f"subscriber {name}")
    if picture.next_head is not None:
        lower.axhspan(picture.now.head, picture.next_head, color="#fcae91", alpha=0.6, label="deleted next")
    upper.set_ylabel("kept")
    lower.set_ylabel("since the beginning")
    if at[0] == at[-1]:
        # With a single time, the axis would stretch over years.
        lower.set_xlim(at[-1] - _LONE_WINDOW, at[-1] + _LONE_WINDOW)
    for axis in (upper, lower):
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(lambda size, _: format_size(size))
        axis.grid(alpha=0.25)
        axis.legend(loc="upper left", fontsize=8)
    figure.autofmt_xdate()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


# --- terminal ---------------------------------------------------------------------------------------------

_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of the eight dots of a braille character, by row and column."""

_CHART_ROWS = 10


class Canvas:
    """Dots on braille characters: two across and four down in each."""

    def __init__(self, columns: int, rows: int) -> None:
        self.width = columns * 2
        self.height = rows * 4
        self._cells = [[0] * columns for _ in range(rows)]

    def dot(self, x: int, y: int) -> None:
        """Set a dot; ``y`` counts from below. Outside: nothing."""
        if 0 <= x < self.width and 0 <= y < self.height:
            top = self.height - 1 - y
            self._cells[top // 4][x // 2] |= _DOTS[top % 4][x % 2]

    def lines(self) -> list[str]:
        return ["".join(chr(0x2800 + cell) for cell in row) for row in self._cells]


def draw_text(picture: Picture, *, width: int = 100) -> list[str]:
    """The picture as lines of text: the size over time, then a bar from head to tail with the position of each
    subscriber."""
    columns = max(20, min(width, 160) - 13)
    lines = [f"{picture.stream}: {picture.says}", ""]
    lines += _size_chart(picture, columns)
    lines += ["", *_bar(picture, columns), ""]
    if picture.next_head is not None:
        lines.append(f"deleted next: {format_size(picture.next_head - picture.now.head)}")
    if picture.why:
        lines.append(picture.why)
    if picture.next_due_ms is not None:
        lines.append(f"next check in {format_duration(max(0, picture.next_due_ms - picture.now.time_ms))}")
    return lines


def _size_chart(picture: Picture, columns: int) -> list[str]:
    points, policy = picture.points, picture.policy
    marks = {
        name: size
        for name, size in (("min", policy.min_bytes), ("max", policy.max_bytes))
        if size is not None and policy.given(f"retain.{name}_bytes")
    }
    sizes = [point.size for point in points]
    highest = max([1, *sizes, *(size for size in marks.values() if size <= 4 * max(1, *sizes, 0))])
    canvas = Canvas(columns, _CHART_ROWS)
    first, last = points[0].time_ms, max(points[0].time_ms + 1, points[-1].time_ms)

    def row(size: float) -> int:
        return round(size * (canvas.height - 1) / highest)

    known = [point.time_ms for point in points]
    for x in range(canvas.width):
        at = first + (last - first) * x // max(1, canvas.width - 1)
        # A single point is drawn as a horizontal line.
        for y in range(row(points[max(0, bisect_right(known, at) - 1)].size) + 1):
            canvas.dot(x, y)
    for name, size in marks.items():
        if size <= highest:
            for x in range(0, canvas.width, 2 if name == "max" else 4):
                canvas.dot(x, row(size))
    labels = {_CHART_ROWS - 1: "0 B", 0: format_size(highest)}
    for name, size in marks.items():
        if size <= highest:
            place = _CHART_ROWS - 1 - row(size) // 4
            labels[place] = name if labels.get(place) is None else f"{labels[place]} {name}"
    drawn = [f"{labels.get(index, ''):>12} {line}" for index, line in enumerate(canvas.lines())]
    ago = format_duration(last - first) if len(points) > 1 else "no history yet"
    return [*drawn, f"{'':>13}{ago + ' ago' if len(points) > 1 else ago:<{columns - 3}}now"]


def _bar(picture: Picture, columns: int) -> list[str]:
    """Head to tail on one line, with marks under it."""
    head, tail = picture.now.head, picture.now.written
    if tail == head:
        return [f"{'':>13}the stream is empty"]

    def column(place: int) -> int:
        return min(columns - 1, max(0, (place - head) * columns // (tail - head)))

    goes = 0 if picture.next_head is None else max(1, column(picture.next_head))
    lines = [f"{'head to tail':>12} {'░' * goes}{'█' * (columns - goes)}"]
    marks: list[tuple[str, int]] = [(f"{name} keeps from here", place) for name, place in picture.limits().items()]
    for name, position in picture.subscribers.items():
        if position is None:
            lines.append(f"{'':>13}  {name} has published nothing")
        else:
            marks.append((f"{name}, {format_size(tail - position)} behind", position))
    marks.sort(key=lambda mark: (mark[1], mark[0]))
    return lines + [f"{'':>13}{_marked(column(place), text, columns)}" for text, place in marks]


def _marked(column: int, text: str, columns: int) -> str:
    return f"{' ' * column}^ {text}" if column + len(text) + 2 <= columns else f"{text} ^".rjust(column + 1)
