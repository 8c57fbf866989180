"""A real Prometheus scrapes a real server, and evaluates the alerts. Set up by: make test-prometheus"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

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
