"""A collector of OpenTelemetry in this process: it takes what real exporters send, as protobuf over HTTP."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

WAIT_S = 30.0
VARIABLES = ("OTEL_SDK_DISABLED", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG", "OTEL_SERVICE_NAME")


@dataclass(frozen=True)
class Seen:
    """One span, as it arrived."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str
    process: str
    start_ns: int
    end_ns: int
    attributes: dict = field(hash=False)
    error: str = ""


class Collector:
    def __init__(self):
        self._came = threading.Condition()
        self._spans = []
        self.requests = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                assert self.headers["content-type"] == "application/x-protobuf"
                outer.take(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, request):
        with self._came:
            self.requests += 1
            for group in request.resource_spans:
                process = _values(group.resource.attributes).get("penstock.process", "")
                for scope in group.scope_spans:
                    self._spans += [_seen(span, process) for span in scope.spans]
            self._came.notify_all()

    def until(self, wanted):
        """All spans, once ``wanted`` of them is true."""
        with self._came:
            assert self._came.wait_for(lambda: wanted(self._spans), WAIT_S), [
                (span.process, span.name) for span in self._spans
            ]
            return list(self._spans)

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _values(attributes):
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in attributes}


def _seen(span, process):
    return Seen(
        name=span.name,
        kind=span.kind,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        process=process,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        error=span.status.message if span.status.code == 2 else "",
    )


@contextmanager
def collecting(monkeypatch):
    """A collector that the environment names, for this process and those that it starts."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield collector
