"""The main job on a part of its input: every process real, the store killed in the middle."""

import json
import subprocess
import sys

import pytest

from penstock.app.demo import check, flights


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_loses_and_doubles_nothing_through_a_kill(tmp_path):
    data = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "demo", "--data", str(data), "--plain", "--limit", "20000"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = json.loads((data / "summary.json").read_text())
    assert summary["good"] is True
    assert summary["processed"] == summary["written"] == 20_000
    assert "kill -9" in done.stdout
    assert (data / "retention.png").stat().st_size > 10_000


def test_the_demo_refuses_a_directory_that_holds_something_else(tmp_path):
    (tmp_path / "precious").write_text("mine")
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "demo", "--data", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.slow
def test_flights_come_in_time_order_with_their_key():
    found = flights.events(3000)
    times = [json.loads(event)["time_hour"] for event, _ in found]
    assert times == sorted(times)
    first = json.loads(found[0][0])
    assert found[0][1] == f"{first['carrier']}{first['flight']}"


@pytest.mark.slow
def test_the_check_sees_what_is_lost_doubled_or_wrong():
    wanted = check.expected(5000)
    right = wanted.reset_index()
    assert check.compare(right, wanted).good
    assert check.compare(right.iloc[1:], wanted).losses == right.iloc[0]["flights"]
    doubled = right.copy()
    doubled.loc[0, "flights"] += 2
    assert check.compare(doubled, wanted).duplicates == 2
    wrong = right.copy()
    wrong.loc[0, "delay"] += 1
    assert check.compare(wrong, wanted).wrong_sums == 1
