"""The plot of a stream: what is gathered, the picture in a terminal, and the one in a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from retention_fakes import NOW_MS, FakeController, FakeStream

from penstock.app.plot import Canvas, Picture, Point, draw_png, draw_text, gather
from penstock.codec.control.policy_document import decode_document
from penstock.core.policies.levels import resolve
from penstock.model.names import StreamName
from penstock.model.retention import EMPTY, EffectivePolicy


def policy(**retain: object) -> EffectivePolicy:
    return resolve(decode_document({"retain": retain}), EMPTY, EMPTY)


def picture(**changes: object) -> Picture:
    plain = Picture(
        stream="s/t",
        points=[Point(time_ms=1000 * n, written=100 * n, head=50 * (n // 4)) for n in range(11)],
        policy=policy(min_bytes=300, max_bytes=800),
        subscribers={"s/g": 600, "s/silent": None},
        next_head=250,
        next_due_ms=13_000,
        why="It frees 150 bytes.",
    )
    return replace(plain, **changes)


def test_all_that_is_drawn_is_gathered() -> None:
    world = FakeController({"s/t": FakeStream(head=200, tail=1000, subscribers={"s/g": 400, "s/silent": None})})
    world.documents[StreamName("s", "t")] = decode_document({"retain": {"max_bytes": 600, "min_age_s": 120}})
    with world.store() as store:
        found = gather(store, "s/t", now_ms=5)
    assert found.now == Point(time_ms=NOW_MS, written=1000, head=200), "the store's own clock"
    assert [point.written for point in found.points] == [100 * n for n in range(11)]
    assert found.subscribers == {"s/g": 400, "s/silent": None}
    assert found.next_head == 400
    assert found.limits() == {"max 600 B": 400, "min 2 min": 800}
    assert json.loads(json.dumps(found.as_json()))["limits"] == {"max 600 B": 400, "min 2 min": 800}


def test_a_terminal_shows_size_limits_subscribers_and_what_goes() -> None:
    lines = draw_text(picture(), width=80)
    text = "\n".join(lines)
    assert all(len(line) <= 80 for line in lines[2:]), max(lines[2:], key=len)
    assert "deleted next: 150 B" in text
    assert "s/g, 400 B behind" in text
    assert "s/silent has published nothing" in text
    assert "min 300 B keeps from here" in text
    assert "It frees 150 bytes." in text
    assert "next check in 3 s" in text
    assert any(line.lstrip().startswith("max") for line in lines), "the maximum stands at its height"
    bar = next(line for line in lines if "head to tail" in line)
    assert bar.count("░") == 67 * 150 // 900, "the share that goes is drawn to scale"


def test_a_canvas_sets_the_dots_it_is_told_and_no_others() -> None:
    canvas = Canvas(2, 1)
    for x, y in ((0, 0), (3, 3), (-1, 0), (4, 0), (0, 4)):
        canvas.dot(x, y)
    assert canvas.lines() == [chr(0x2800 + 0x40) + chr(0x2800 + 0x08)]


def test_the_chart_is_as_high_as_the_size() -> None:
    flat = picture(points=[Point(time_ms=n, written=100, head=0) for n in range(3)], policy=policy(), next_head=None)
    rows = [line[13:] for line in draw_text(flat, width=60)[2:12]]
    assert all(cell == "⣿" for row in rows for cell in row)
    half = replace(flat, policy=policy(max_bytes=200))
    rows = [line[13:] for line in draw_text(half, width=60)[2:12]]
    assert all(cell == "⣿" for row in rows[6:] for cell in row)
    assert "⣿" not in "".join(rows[:4])


@given(
    steps=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**9), st.floats(0, 1)), min_size=1, max_size=30),
    width=st.integers(1, 300),
    least=st.none() | st.integers(0, 10**10),
    most=st.none() | st.integers(0, 10**10),
    share=st.floats(0, 1),
)
@settings(deadline=None, max_examples=50)
def test_every_history_can_be_drawn(
    steps: list[tuple[int, int, float]], width: int, least: int | None, most: int | None, share: float
) -> None:
    points, at, written, head = [], 0, 0, 0
    for pause, size, gone in steps:
        at, written = at + pause, written + size
        head = max(head, int(written * gone))
        points.append(Point(time_ms=at, written=written, head=head))
    place = head + int((written - head) * share)
    drawn = draw_text(
        picture(
            points=points, policy=policy(min_bytes=least, max_bytes=most), subscribers={"a": place}, next_head=place
        ),
        width=width,
    )
    assert all("\n" not in line for line in drawn)
    assert len(drawn) >= 13


@pytest.mark.parametrize("points", [1, 11])
def test_a_picture_is_saved(points: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "deep" / "plot.png"
    draw_png(picture(points=picture().points[-points:]), path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 10_000
    assert list(path.parent.iterdir()) == [path], "nothing is left beside the picture"


def test_an_age_beyond_all_history_keeps_from_the_head() -> None:
    young = picture(policy=policy(max_age_s=365 * 86_400, min_age_s=4), subscribers={}, next_head=None)
    head, place = young.now.head, young.points[6].written
    assert young.limits() == {"max 365 d": head, "min 4 s": place}
    lone = replace(young, points=young.points[-1:])
    assert set(lone.limits().values()) == {head}


def test_axes_carry_units_and_a_lone_point_a_window_of_minutes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    seen: list[tuple[float, list[str]]] = []
    closing = plt.close

    def look(figure: Any) -> None:
        upper, lower = figure.axes
        left, right = lower.get_xlim()
        seen.append((right - left, [upper.yaxis.get_major_formatter()(size) for size in (0, 2_000_000, 3 * 10**9)]))
        closing(figure)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plt, "close", look)
        draw_png(picture(points=picture().points[-1:]), tmp_path / "plot.png")
    assert seen == [(pytest.approx(10 / 1440), ["0 B", "2 MB", "3 GB"])]
