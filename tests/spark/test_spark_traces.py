"""A batch read is one trace: the plan, and the tasks that read for it."""

import pickle

import pytest

import penstock
from penstock.model.traces import spans as traces
from penstock.spark.source import PenstockSource
from penstock.testing.server import ServerProcess
from tests.app.traces_collector import collecting

pytestmark = pytest.mark.server

AROUND = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_task_belongs_to_the_trace_of_its_plan(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRACES", "1")
    monkeypatch.setenv("TRACEPARENT", AROUND)
    with collecting(monkeypatch) as collector, ServerProcess(tmp_path / "data", "--traces") as server:
        try:
            with penstock.connect(server.address, dial_s=30) as store:
                store.create_scope("shop")
                with store.create_stream("shop/orders").writer() as writer:
                    writer.write_many([b"one", b"two"])
            source = PenstockSource({"controller": server.address, "path": "shop/orders"})
            schema = source.schema()
            reader = source.reader(schema)
            partitions = pickle.loads(pickle.dumps(reader.partitions()))
            monkeypatch.delenv("TRACEPARENT")  # an executor has the share alone
            assert sum(batch.num_rows for one in partitions for batch in reader.read(one)) == 2
            spans = collector.until(
                lambda all_of: (
                    {"plan a batch read", "read a partition"} <= {span.name for span in all_of}
                    and any(span.process == "server" for span in all_of)
                )
            )
        finally:
            traces.install(None)
    plan = next(span for span in spans if span.name == "plan a batch read")
    read = next(span for span in spans if span.name == "read a partition")
    assert (plan.trace, plan.parent) == tuple(AROUND.split("-")[1:3])
    assert (read.trace, read.parent) == (plan.trace, plan.id)
    assert read.attributes["messaging.batch.message_count"] == 2
    assert any(span.process == "server" and span.trace == plan.trace for span in spans)


def test_without_the_variable_no_task_makes_spans(monkeypatch):
    from penstock.spark.worker.spans import header_of, spark_span

    monkeypatch.delenv("PENSTOCK_TRACES", raising=False)
    with spark_span("plan a batch read", {}, AROUND) as span:
        assert traces.active() is None
        assert header_of(span) == ""
