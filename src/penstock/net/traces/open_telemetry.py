"""``model.traces.spans.Tracer`` over OpenTelemetry's API, with spans sent in batches by its SDK."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NonRecordingSpan, SpanKind, Status, StatusCode, TraceFlags, TraceState

from penstock.model.redaction import redacted
from penstock.model.traces.spans import ROOT, Kind, SpanContext, Value

_NAME = "penstock"
_KINDS = {kind: SpanKind[kind.name] for kind in Kind}
_END_S = 3.0
"""How long a process that ends waits for its last spans to be sent. A collector that is down must not delay it
longer."""
_REPEATED_S = 60.0
"""Least time between two log records of one text about the export: a collector that is down fails every few seconds."""
_ERROR_MAX = 500  # characters of an error's text; a collector shows it in one line


class OpenTelemetrySpan:
    """Implements ``model.traces.spans.Span``."""

    __slots__ = ("_span", "context")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self.context = _ours(span.get_span_context())

    def set(self, name: str, value: Value) -> None:
        self._span.set_attribute(name, value)

    def end(self, error: BaseException | None = None, *, at_ns: int | None = None) -> None:
        if error is not None:
            self._span.set_attribute("error.type", type(error).__name__)
            self._span.set_status(Status(StatusCode.ERROR, redacted(str(error))[:_ERROR_MAX]))
        self._span.end(at_ns)


class OpenTelemetryTracer:
    """Implements ``model.traces.spans.Tracer``. The current span is OpenTelemetry's own, so spans of the program around,
    and of other libraries, join."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer(_NAME)

    def start(
        self,
        name: str,
        kind: Kind,
        attributes: Mapping[str, Value],
        *,
        parent: SpanContext | None = None,
        at_ns: int | None = None,
    ) -> OpenTelemetrySpan:
        around = None if parent is None else _around(parent)
        span = self._tracer.start_span(name, around, _KINDS[kind], attributes, start_time=at_ns)
        return OpenTelemetrySpan(span)

    def now_ns(self) -> int:
        return time.time_ns()

    def current(self) -> SpanContext | None:
        found = trace.get_current_span().get_span_context()
        return _ours(found) if found.is_valid else None

    @contextmanager
    def within(self, context: SpanContext) -> Iterator[None]:
        token = otel_context.attach(_around(context, otel_context.get_current()))
        try:
            yield
        finally:
            otel_context.detach(token)


def _ours(found: trace.SpanContext) -> SpanContext:
    state = found.trace_state.to_header() if found.trace_state else ""
    return SpanContext(found.trace_id, found.span_id, found.trace_flags.sampled, state)


def _around(parent: SpanContext, outer: otel_context.Context | None = None) -> otel_context.Context:
    base = otel_context.Context() if outer is None else outer
    if parent == ROOT:
        return trace.set_span_in_context(trace.INVALID_SPAN, base)
    theirs = trace.SpanContext(
        parent.trace_id,
        parent.span_id,
        is_remote=outer is None,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT),
        trace_state=TraceState.from_header([parent.state]) if parent.state else None,
    )
    return trace.set_span_in_context(NonRecordingSpan(theirs), base)


class _OncePerMinute(logging.Filter):
    """Passes each log text at most once a minute. Installed on the loggers of the exporter alone."""

    def __init__(self) -> None:
        super().__init__()
        self._passed_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if record.created - self._passed_at.get(text, float("-inf")) < _REPEATED_S:
            return False
        self._passed_at[text] = record.created
        return True


_ONCE_PER_MINUTE = _OncePerMinute()
_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.sdk._shared_internal",
    "urllib3.connectionpool",
)


class Export:
    """Sends spans to the collector that the environment names, from a thread of its own."""

    def __init__(self, attributes: Mapping[str, Value], schedule_delay_ms: float | None = None) -> None:
        """``attributes``: of the process, such as ``service.name``; the environment has precedence."""
        named = Resource.create()  # from OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        own = {name: value for name, value in attributes.items() if _is_unset(named, name)}
        self.provider = TracerProvider(resource=named.merge(Resource(own)), shutdown_on_exit=False)
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_ONCE_PER_MINUTE)
        self.provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=schedule_delay_ms)
        )

    def close(self) -> None:
        """Send what is left. Gives up after 3 seconds."""
        ending = threading.Thread(target=self.provider.shutdown, name="penstock-traces-end", daemon=True)
        ending.start()
        ending.join(_END_S)


def program_provider() -> TracerProvider | None:
    """The provider of spans that the program around has set up; None: it has none."""
    found = trace.get_tracer_provider()
    return found if isinstance(found, TracerProvider) else None


def _is_unset(named: Resource, name: str) -> bool:
    value = named.attributes.get(name)
    return value is None or (name == "service.name" and str(value).startswith("unknown_service"))
