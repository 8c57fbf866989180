"""The metrics of a server with workers, scraped as Prometheus does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from alert_rules import firing, load_rules, parse_page

import penstock
from penstock.testing.server import ServerProcess

pytestmark = pytest.mark.server

BLOCK_BYTES = 4096

RULES = load_rules(Path(__file__).resolve().parents[2] / "examples" / "monitoring" / "alerts.yml")


def text(server: ServerProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics", timeout=30) as reply:
        assert reply.headers["content-type"].startswith("text/plain")
        return str(reply.read().decode())


def scrape(server: ServerProcess) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text(server).splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def total(found: dict[str, float], name: str) -> float:
    return sum(value for key, value in found.items() if key.partition("{")[0] == name)


def test_the_page_holds_all_workers_and_survives_the_death_of_one(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", "--workers", "2", "--log-format", "json") as server:
        with penstock.connect(server.address) as store:
            stream = store.create_stream("plant/named", segments=4, create_scope=True)
            assert total(scrape(server), "penstock_grpc_connections") == 1
            with stream.writer() as writer:
                for number in range(200):
                    writer.write(b"x" * 92, key=str(number))
        found = scrape(server)
        assert total(found, "penstock_wire_appended_events_total") == 200
        assert total(found, "penstock_wire_appended_bytes_total") == 200 * 100
        assert {key for key in found if key.startswith("penstock_up{")} == {
            f'penstock_up{{process="{name}"}}' for name in ("server", "worker-0", "worker-1")
        }
        assert found['penstock_calls_total{call="streams.create",outcome="ok",process="server"}'] == 1
        written = [found[f'penstock_log_write_seconds_count{{process="worker-{n}"}}'] for n in (0, 1)]
        assert all(written)
        assert total(found, "penstock_http_connections") >= 1
        deadline = time.monotonic() + 20
        while abs(disk_as_du_says(server) - scrape(server)["penstock_disk_used_bytes"]) > BLOCK_BYTES:
            assert time.monotonic() < deadline, "the disk differs from what du counts"
        healthy = parse_page(text(server), at_s=-60.0)
        os.kill(server.workers[1]["pid"], signal.SIGSTOP)
        page = parse_page(text(server), at_s=0.0)  # after a second one, the server may have replaced the worker
        pages = [page, replace(page, at_s=60.0)]
        assert pages[-1].samples["penstock_up"][frozenset({("process", "worker-1")})] == 0
        assert firing(RULES, [healthy, *pages[:1]]) == set()
        assert "PenstockWorkerDown" in firing(RULES, [healthy, *pages])
        with suppress(ProcessLookupError):  # where the scrape took long, the server has killed the silent worker
            os.kill(server.workers[1]["pid"], signal.SIGKILL)
        deadline = time.monotonic() + 60
        while scrape(server).get('penstock_up{process="worker-1"}') != 1:
            assert time.monotonic() < deadline, "the worker did not come back"
            time.sleep(0.2)
        again = scrape(server)
        assert (
            again['penstock_started_time_seconds{process="worker-1"}']
            > found['penstock_started_time_seconds{process="worker-1"}']
        )
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert {"server", "worker-0", "worker-1"} <= {line["process"] for line in lines}
    assert all(line["time"].endswith("Z") and line["level"] and line["logger"] and line["message"] for line in lines)


def disk_as_du_says(server: ServerProcess) -> int:
    # Files that the store deletes meanwhile make it fail.
    answer = subprocess.run(("du", "-s", "--block-size=1", server.data), capture_output=True, check=False, text=True)
    return int(answer.stdout.split()[0])
