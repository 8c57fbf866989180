"""Laws of the table and its pictures: targets are read as they are meant, and what was left out is listed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.draw import draw, score
from bench.measure import Skipped, figure, show
from bench.peers.client_process import WorkError
from bench.peers.contest import OURS, Contestant, PeersBench

ROOT = Path(__file__).resolve().parents[2]


def row(target: str, median: float, limit: tuple[str, float] | None = None) -> dict[str, Any]:
    return figure("X", "work", "events/s", [median], limit=limit, target=target).as_dict()


@pytest.mark.parametrize(
    ("target", "median", "limit", "reached"),
    [
        (">= 0.5", 25.0, ("disk", 100.0), 0.5),
        ("<= 2", 100.0, ("disk", 100.0), 2.0),
        (">= 3 M", 6e6, ("disk", 100.0), 2.0),
        (">= 20 k", 10_000.0, None, 0.5),
        ("<= 3000 us", 1000.0, ("disk", 10.0), 3.0),
        (">= 1,000 txn/s", 500.0, ("disk", 1e6), 0.5),
        ("<= 120", 60.0, None, 2.0),
    ],
)
def test_a_bare_target_is_of_the_ratio_and_one_with_a_unit_of_the_median(
    target: str, median: float, limit: tuple[str, float] | None, reached: float
) -> None:
    made = score(row(target, median, limit))
    assert made is not None
    assert made.reached == pytest.approx(reached)


def test_a_row_without_a_target_and_one_of_another_store_have_no_score() -> None:
    assert score(row("", 1.0)) is None
    assert score(figure("X", "work", "s", [1.0], target=">= 1", who="Other", durability="O").as_dict()) is None


def test_what_was_left_out_is_told_by_name_with_the_reason_and_survives_json() -> None:
    skipped = Skipped(id="V1", work="ingest", who="Other", reason="there is no java here")
    assert "left out: V1, ingest, Other: there is no java here" in show([figure("V1", "ingest", "s", [1.0]), skipped])
    assert json.loads(json.dumps(skipped.as_dict()))["reason"] == "there is no java here"


def test_a_store_without_a_packaged_server_is_listed_as_left_out(tmp_path: Path) -> None:
    rows = PeersBench(tmp_path, runs=3, scale=1.0)._rows()
    assert any(isinstance(row, Skipped) and row.who == "Apache Iggy" and "crates.io" in row.reason for row in rows)


def contestant(who: str) -> Contestant:
    return Contestant(who=who, durability="F", server="ours", module="none", arguments=lambda _: [])


def test_one_that_fails_at_a_work_is_left_out_of_that_work_alone(tmp_path: Path) -> None:
    bench = PeersBench(tmp_path, runs=3, scale=1)
    bench.deadline = time.monotonic() + 60
    good, bad = contestant(OURS), contestant("Other")
    bench.present = [good, bad]
    asked: list[str] = []

    def work(one: Contestant) -> None:
        asked.append(one.who)
        if one is bad:
            raise WorkError("no leader")
        one.keep("ingest", 2.0)

    bench._each("ingest", work)
    bench._each("ingest", work)
    assert asked == [OURS, "Other", OURS]
    assert bench.present == [good, bad]
    assert [(item.id, item.who, item.reason) for item in bench.skipped] == [("V1", "Other", "no leader")]


def test_nothing_is_begun_after_the_time_is_over(tmp_path: Path) -> None:
    bench = PeersBench(tmp_path, runs=3, scale=1)
    bench.deadline = time.monotonic() - 1
    bench.present = [contestant(OURS)]
    bench._each("ingest", lambda _: pytest.fail("begun too late"))


_PARENT = """
import sys, time
from pathlib import Path
from bench.peers.servers import spawn
print(spawn([sys.executable, "-c", "import time; time.sleep(600)"], Path(sys.argv[1])).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children end with their parent on Linux")
def test_a_server_ends_with_the_bench_even_when_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while running(child) and time.monotonic() < deadline:
        os.sched_yield()
    assert not running(child)


def running(pid: int) -> bool:
    """Not gone, and no zombie that waits to be collected by somebody else."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[0] != "Z"


def test_pictures_are_drawn_into_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    row = {
        "id": "S1",
        "work": "scan",
        "unit": "events/s",
        "median": 3.0,
        "ratio": None,
        "limit": "",
        "target": ">= 2 events/s",
    }
    assert [path.is_file() for path in draw([row], tmp_path / "not" / "yet")] == [True]
