"""One trace runs from a writer through a worker to a reader; a collector that is down holds nothing up."""

import subprocess
import sys
import time

import pytest
from traces_collector import collecting

import penstock
from penstock.model.traces.spans import spanning
from penstock.net.traces.start import begin_tracing
from penstock.testing.server import ServerProcess, free_ports

pytestmark = pytest.mark.server

SERVER, CLIENT, PRODUCER = 2, 3, 4  # kinds of spans in OpenTelemetry's protocol


@pytest.fixture
def collector(monkeypatch):
    with collecting(monkeypatch) as found:
        yield found


@pytest.fixture
def client(collector):
    end = begin_tracing({"service.name": "test", "penstock.process": "client"})
    yield
    end()


def write_and_read(address):
    """Within one span. Returns the trace."""
    with spanning("job") as job, penstock.connect(address, dial_s=30) as store:
        store.create_scope("shop")
        store.create_stream("shop/orders")
        stream = store.stream("shop/orders")
        with stream.writer() as writer:
            writer.write_many(["one", "two"])
            writer.flush()
        with stream.reader() as reader:
            assert [reader.read(timeout_s=30).data for _ in range(2)] == [b"one", b"two"]
    return f"{job.context.trace_id:032x}"


def line_of(spans, span):
    """The span and those around it, inside first."""
    by_id = {one.id: one for one in spans}
    line = [span]
    while line[-1].parent in by_id:
        line.append(by_id[line[-1].parent])
    return line


def test_one_trace_runs_from_the_writer_through_a_worker_to_the_reader(collector, client, tmp_path):
    with ServerProcess(tmp_path / "data", "--workers", "2", "--traces") as server:
        trace = write_and_read(server.address)
        wanted = {"acknowledge", "read shop/orders", "job", "append shop/orders", "store shop/orders"}
        spans = collector.until(
            lambda all_of: (
                wanted <= {span.name for span in all_of if span.trace == trace}
                and any(span.name == "read shop/orders" and span.kind == SERVER for span in all_of)
                and any(span.process == "server" and span.name == "streams.create" for span in all_of)
            )
        )
    own = [span for span in spans if span.trace == trace]
    stored = next(span for span in own if span.name == "commit to the log")
    line = line_of(own, stored)
    assert [span.name for span in line] == ["commit to the log", "store shop/orders", "append shop/orders", "job"]
    assert line[1].process.startswith("worker-")
    assert [span.kind for span in line[1:3]] == [SERVER, PRODUCER]
    assert line[1].attributes == line[2].attributes
    assert line[1].attributes["messaging.batch.message_count"] == 2
    assert line[2].start_ns <= line[1].start_ns <= stored.start_ns <= stored.end_ns <= line[1].end_ns
    read = next(span for span in own if span.name == "read shop/orders" and span.kind == SERVER)
    assert [(span.name, span.kind) for span in line_of(own, read)][:2] == [
        ("read shop/orders", SERVER),
        ("read shop/orders", CLIENT),
    ]
    assert line_of(own, read)[-1].name == "job"
    # The controller's call, in the server, and what it asks of a worker.
    created = next(span for span in own if span.name == "streams.create" and span.process == "server")
    assert [span.process for span in line_of(own, created)] == ["server", "client", "client"]
    assert any(created in line_of(own, span)[1:] and span.process.startswith("worker-") for span in own)


def test_a_collector_that_is_down_delays_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    with ServerProcess(tmp_path / "data", "--traces") as server:
        with penstock.connect(server.address, dial_s=30) as store:
            store.create_scope("shop")
            store.create_stream("shop/orders")
            with store.stream("shop/orders").writer() as writer:
                for number in range(100):
                    writer.write(str(number))
                    writer.flush()
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 15
        # One warning a minute for each text, not one for each attempt.
        assert server.log.read_text().count("opentelemetry") < 12


LOADED = """
import sys, penstock
with penstock.open(sys.argv[1]) as store:
    store.create_scope("shop")
    store.create_stream("shop/orders")
    with store.stream("shop/orders").writer() as writer:
        writer.write("one")
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def test_without_tracing_nothing_of_opentelemetry_is_loaded(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(tmp_path / "data")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


SERVED = """
import sys
from penstock.app.cli.main import main
import atexit
atexit.register(lambda: print("LOADED", [n for n in sys.modules if n.startswith("opentelemetry")], flush=True))
sys.argv = ["penstock", "standalone", "--json", "--data", sys.argv[1], "--controller-port", "0", "--store-port", "0", "--http-port", "0"]
main()
"""


def test_a_server_without_tracing_loads_nothing_of_it(tmp_path):
    server = subprocess.Popen([sys.executable, "-c", SERVED, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True)
    try:
        assert "serving" in server.stdout.readline()
        server.terminate()
        assert server.stdout.read().strip().endswith("LOADED []")
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_the_standard_variables_turn_it_off(monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert begin_tracing({"service.name": "test"}) is None
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(penstock.errors.InvalidArgumentError, match="http/protobuf"):
        begin_tracing({"service.name": "test"})
