"""The metrics page: every metric of the code is documented, and the page shows what happens in a store."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock.app.metrics.catalogue import METRICS, MetricKind
from penstock.app.metrics.disk import DiskMetrics
from penstock.app.metrics.exposition import Source, render
from penstock.app.metrics.page import MetricsPage
from penstock.app.metrics.streams import StreamMetrics
from penstock.app.telemetry import BOUNDS_S, Counters, Snapshot
from penstock.client.store import AsyncStore
from penstock.model.errors import CorruptDataError
from penstock.model.names import StreamName
from penstock.ports.data.space import DiskSpace
from penstock.testing.fakes import FakeClock
from penstock.testing.world import World
from tests.flat_control import Around

ROOT = Path(__file__).resolve().parents[2]
MAYBE_METERED = re.compile(r"(telemetry|values|found|away)[\s)]*\.\s*(add|tally|gauge|observe|durations)\s*\(")
"""In each file with a call that ``calls_of_telemetry`` counts."""


def calls_of_telemetry() -> dict[str, tuple[str, int, str]]:
    """By name: the method, how many labels the call gives, and where it is."""
    found = {}
    for path in Path(penstock.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if not MAYBE_METERED.search(text):
            continue  # To parse all files takes seconds.
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            receiver = ast.unparse(node.func.value)
            method = node.func.attr
            metered = re.search(r"(telemetry|values|^found|^away)$", receiver)
            method = {"tally": "add", "durations": "observe"}.get(method, method)
            if method not in ("add", "gauge", "observe") or not metered or not node.args:
                continue
            name = node.args[0]
            if not isinstance(name, ast.Constant):
                assert "telemetry" not in receiver, f"{path}: the name of a metric is computed"
                continue
            if isinstance(name.value, str) and (method != "add" or "telemetry" in receiver):
                labels = node.args[2] if len(node.args) > 2 else None
                known = isinstance(labels, ast.Tuple) and not any(isinstance(one, ast.Starred) for one in labels.elts)
                count = 0 if labels is None else len(labels.elts) if known else -1
                found[name.value] = (method, count, f"{path.name}:{node.lineno}")
    return found


CLIENTS_ONLY = {"dialled_connections", "direct_lines"}
"""Counted by a client of a remote store, which has no page."""


def test_every_metric_of_the_code_is_in_the_catalogue_and_no_other():
    used = calls_of_telemetry()
    assert set(used) - CLIENTS_ONLY == set(METRICS)
    for name, (method, labels, where) in used.items():
        if name in CLIENTS_ONLY:
            continue
        metric = METRICS[name]
        assert (method == "observe") == (metric.kind is MetricKind.SECONDS), where
        assert labels in (-1, len(metric.labels)), f"{where}: {name} has other labels"


def test_the_page_of_the_reference_is_current():
    spec = importlib.util.spec_from_file_location("metrics_page", ROOT / "scripts" / "metrics_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert page == module.page(), "run: python scripts/docs.py --reference"


def samples(body: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(body.decode())
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def test_what_is_counted_is_what_prometheus_reads():
    counters = Counters()
    counters.add("wire_appends", 3)
    counters.add("calls", 2, ("streams.create", "ok"))
    counters.gauge("holds", 4)
    for duration_s in (0.00005, 0.0001, 0.3, 99.0):
        counters.observe("log_write_seconds", duration_s)
    crossed = Snapshot.from_lists(json.loads(json.dumps(counters.snapshot().to_lists())))
    body, _ = render([Source(process="worker-1", snapshot=crossed)])
    found = samples(body)
    process = ("process", "worker-1")
    assert found["penstock_wire_appends_total", (process,)] == 3
    assert found["penstock_calls_total", (("call", "streams.create"), ("outcome", "ok"), process)] == 2
    assert found["penstock_holds", ()] == 4
    assert found["penstock_log_write_seconds_bucket", (("le", "0.0001"), process)] == 2
    assert found["penstock_log_write_seconds_bucket", (("le", "0.5"), process)] == 3
    assert found["penstock_log_write_seconds_bucket", (("le", str(BOUNDS_S[-1])), process)] == 3
    assert found["penstock_log_write_seconds_bucket", (("le", "+Inf"), process)] == 4
    assert found["penstock_log_write_seconds_sum", (process,)] == pytest.approx(99.30015)


@pytest.mark.parametrize("kind", ["application/openmetrics-text", "text/plain"])
@pytest.mark.parametrize("version", ["x", "", "1.x", "1..2", "1", "9" * 5000])
def test_an_odd_version_in_the_request_gets_an_answer(kind, version):
    counters = Counters()
    counters.add("wire_appends")
    source = Source(process="server", snapshot=counters.snapshot())
    body, _ = render([source], accept=f"{kind}; version={version}")
    assert b"penstock_wire_appends_total{" in body


def test_open_metrics_is_spoken_to_those_who_ask():
    counters = Counters()
    counters.add("wire_appends")
    body, content_type = render(
        [Source(process="server", snapshot=counters.snapshot())], accept="application/openmetrics-text; version=1.0.0"
    )
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_the_largest_streams_and_the_named_ones_are_shown():
    async def run() -> None:
        world = World()
        async with world.serving() as (segments, controller):
            store = AsyncStore(segments, controller, world.clock, world.rng)
            for number in range(12):
                stream = await store.create_stream(f"s/t{number:02}", create_scope=True)
                async with stream.writer() as writer:
                    for _ in range(number + 1):
                        await writer.write(b"x" * 1000)
            await segments.flush()
            metrics = StreamMetrics(controller, world.clock, shown=3, named=[StreamName("s", "t01")])
            await metrics.sample()
            assert shown(metrics) == {"s/t01", "s/t09", "s/t10", "s/t11"}
            await store.stream("s/t11").seal()
            await store.stream("s/t11").delete()
            stream = store.stream("s/t00")
            async with stream.writer() as writer:
                for _ in range(50):
                    await writer.write(b"x" * 1000)
            await segments.flush()
            await metrics.sample()  # finds that a stream is gone
            await metrics.sample()  # finds the stream that takes its place
            assert shown(metrics) == {"s/t00", "s/t01", "s/t09", "s/t10"}
            held = [item for item in metrics.snapshot().gauges if item[0] == "stream_held_bytes"]
            live = {
                labels[0]: value for name, labels, value in metrics.snapshot().gauges if name == "stream_live_bytes"
            }
            for name, total in live.items():
                assert sum(value for _, labels, value in held if labels[0] == name) == total

    asyncio.run(run())


def test_samples_asked_for_at_once_are_taken_one_after_the_other():
    def around(name: str, call: Any) -> Any:
        if not callable(call):
            return call

        async def slow(*rest: Any, **named: Any) -> Any:
            await asyncio.sleep(0)
            return await call(*rest, **named)

        return slow

    async def run():
        world = World()
        async with world.serving() as (segments, controller):
            store = AsyncStore(segments, controller, world.clock, world.rng)
            for name in "abc":
                await store.create_stream(f"s/{name}", create_scope=True)
            metrics = StreamMetrics(Around(controller, around), world.clock, shown=3)  # type: ignore[arg-type]
            await asyncio.gather(*(metrics.sample() for _ in range(5)))
            assert shown(metrics) == {"s/a", "s/b", "s/c"}

    asyncio.run(run())


def test_a_damaged_stream_does_not_hide_the_others(caplog: pytest.LogCaptureFixture):
    def around(name: str, call: Any) -> Any:
        async def damaged(stream: StreamName, *rest: Any) -> Any:
            if stream.stream == "b":
                raise CorruptDataError("a record of the stream cannot be read", stream=stream)
            return await call(stream, *rest)

        return damaged if name in ("retention.reclaim", "retention.forecast") else call

    async def run() -> None:
        world = World()
        async with world.serving() as (segments, controller):
            store = AsyncStore(segments, controller, world.clock, world.rng)
            for name in "abc":
                await store.create_stream(f"s/{name}", create_scope=True)
            metrics = StreamMetrics(Around(controller, around), world.clock, shown=3)  # type: ignore[arg-type]
            await metrics.sample()
            assert shown(metrics) == {"s/a", "s/c"}
            assert "a stream could not be sampled" in caplog.text

    asyncio.run(run())


def shown(metrics: StreamMetrics) -> set[str]:
    return {labels[0] for name, labels, _ in metrics.snapshot().gauges if name == "stream_live_bytes"}


def test_the_dashboard_and_the_alerts_name_metrics_that_exist():
    exposed = set()
    for metric in METRICS.values():
        exposed.add(metric.exposed)
        if metric.kind is MetricKind.SECONDS:
            exposed |= {f"{metric.exposed}_bucket", f"{metric.exposed}_sum", f"{metric.exposed}_count"}
    for name in ("dashboard.json", "alerts.yml", "alerts_test.yml"):
        text = (ROOT / "examples" / "monitoring" / name).read_text()
        assert set(re.findall(r"\bpenstock_\w+", text)) <= exposed, name


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner))


@given(answer=JSON | st.lists(st.lists(st.lists(JSON, min_size=3, max_size=3), max_size=2), min_size=3, max_size=3))
@example(answer=[[["wire_appends", [], "x"]], [], []])
@example(answer=[[], [], [["log_write_seconds", [], [1, 2]]]])
def test_a_worker_with_a_strange_answer_is_down_and_the_page_shows_the_others(answer):
    async def ask():
        return answer

    async def disk():
        return Counters().snapshot()

    page = MetricsPage(
        own=Counters().snapshot,
        workers={"worker-0": ask},
        streams=SimpleNamespace(snapshot=up),
        disk=SimpleNamespace(snapshot=disk),
    )
    response = asyncio.run(page._answer(SimpleNamespace(headers={})))
    assert response.status_code == 200
    try:
        Snapshot.from_lists(answer)
    except CorruptDataError:
        assert samples(response.body)["penstock_up", (("process", "worker-0"),)] == 0


def up():
    counters = Counters()
    counters.gauge("holds", 1)
    return counters.snapshot()


def test_while_a_part_of_the_store_is_away_the_last_look_at_the_disk_counts() -> None:
    """Asking would wait, and a scrape that takes too long has no metrics at all."""

    class Space:
        asked = 0

        async def disk(self) -> DiskSpace:
            self.asked += 1
            return DiskSpace(total_bytes=10, free_bytes=4, used_bytes=self.asked, budget_bytes=None)

    async def main() -> None:
        away: str | None = "container 1: no store serves it"
        space = Space()
        metrics = DiskMetrics(cast(Any, space), FakeClock(), away=lambda: away)
        assert (await metrics.snapshot()).to_lists() == Counters().snapshot().to_lists()
        away = None
        found = await metrics.snapshot()
        away = "container 1: no store serves it"
        assert await metrics.snapshot() is found
        assert space.asked == 1

    asyncio.run(main())
