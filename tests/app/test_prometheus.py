"""A real Prometheus scrapes a real server, and evaluates the alerts. Set up by: make test-prometheus"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence, Set
from itertools import chain
from pathlib import Path

import pytest
from alert_causes import Step, causes, certificate_causes
from alert_rules import Page

import penstock
from penstock.testing.server import ServerProcess, free_ports

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "build" / "prometheus"
MONITORING = ROOT / "examples" / "monitoring"

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.skipif(not (HOME / "promtool").exists(), reason="Prometheus is set up by: make test-prometheus"),
]


def test_each_alert_fires_for_its_cause_and_for_nothing_else() -> None:
    subprocess.run((HOME / "promtool", "test", "rules", MONITORING / "alerts_test.yml"), check=True)
    subprocess.run((HOME / "promtool", "check", "config", MONITORING / "prometheus.yml"), check=True)


def test_prometheus_raises_on_the_pages_of_a_live_server_the_alert_of_each_cause_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory in (tmp_path / "plain", tmp_path / "tls"):
        directory.mkdir()
    used = set(re.findall(r"\b(?:penstock_\w+|up)\b", (MONITORING / "alerts.yml").read_text()))
    steps = chain(causes(tmp_path / "plain", monkeypatch), certificate_causes(tmp_path / "tls", monkeypatch))
    tests = [as_test(step, timeline.pages, used) for step, timeline in steps]
    rules = [str(MONITORING / "alerts.yml")]
    (tmp_path / "pages.yml").write_text(json.dumps({"rule_files": rules, "evaluation_interval": "1m", "tests": tests}))
    subprocess.run((HOME / "promtool", "test", "rules", tmp_path / "pages.yml"), check=True)


def as_test(step: Step, pages: Sequence[Page], used: Set[str]) -> dict:
    """A test for promtool, whose time begins with 0: the values of these pages, and which alerts fire at the end."""
    start_s = pages[0].at_s
    minutes = {round((page.at_s - start_s) / 60): page for page in pages}
    last = max(minutes)
    series: dict[str, list[str]] = {}
    # As in a scrape of Prometheus: a series that the page lacks ends there.
    empty = ["stale" if minute in minutes else "_" for minute in range(last + 1)]
    for minute, page in minutes.items():
        for name in used & set(page.samples):
            for labels, value in page.samples[name].items():
                shown = ",".join(f'{label}="{text}"' for label, text in sorted(labels))
                values = series.setdefault(f"{name}{{{shown}}}", list(empty))
                values[minute] = repr(value - start_s if name.endswith("_time_seconds") else value)
    firing = 'group by (alertname) (ALERTS{alertstate="firing"})'
    expected = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(step.expected)]
    return {
        "name": step.cause,
        "interval": "1m",
        "input_series": [{"series": name, "values": " ".join(values)} for name, values in series.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": f"{last}m", "exp_samples": expected}],
    }


def ask(port: int, path: str, **query: str) -> dict:
    url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=10) as reply:
        return json.load(reply)["data"]


def until(found, what: str):
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            value = found()
        except OSError:
            value = None
        if value:
            return value
        time.sleep(0.5)
    pytest.fail(f"Prometheus never showed {what}")


def test_prometheus_reads_the_page_and_raises_an_alert_for_a_worker_that_dies(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with ServerProcess(tmp_path / "store", "--workers", "2") as server:
        with penstock.connect(server.address) as store:
            stream = store.create_stream("plant/turbine", create_scope=True)
            with stream.writer() as writer:
                for number in range(100):
                    writer.write(b"x" * 92, key=str(number))
        config = (MONITORING / "prometheus.yml").read_text()
        rules = (MONITORING / "alerts.yml").read_text().replace("for: 1m", "for: 1s")
        (tmp_path / "alerts.yml").write_text(rules)
        config = config.replace("localhost:9091", f"localhost:{server.http_port}").replace("15s", "1s")
        (tmp_path / "prometheus.yml").write_text(config)
        prometheus = subprocess.Popen(
            (
                *(HOME / "prometheus", f"--config.file={tmp_path / 'prometheus.yml'}"),
                *(f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"),
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:

            def events() -> float:
                found = ask(port, "query", query="sum(penstock_wire_appended_events_total)")["result"]
                return float(found[0]["value"][1]) if found else 0

            assert until(events, "the events") == 100
            assert not firing(port)
            server.kill()
            assert until(lambda: "PenstockDown" in firing(port), "the alert")
            server.start()
        finally:
            prometheus.terminate()
            prometheus.wait()


def firing(port: int) -> set[str]:
    return {one["labels"]["alertname"] for one in ask(port, "alerts")["alerts"] if one["state"] == "firing"}
