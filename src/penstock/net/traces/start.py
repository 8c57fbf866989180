"""Turns tracing on in a process. Nothing of OpenTelemetry is imported before."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from penstock.model.errors import InvalidArgumentError, missing_extra
from penstock.model.traces import spans as traces
from penstock.model.traces.spans import Value

_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"


def start_tracing(service: str = "penstock") -> None:
    """Make spans in this process from now on, and send them to an OpenTelemetry collector.

    OpenTelemetry's own environment variables set the collector and the sampling: ``OTEL_EXPORTER_OTLP_ENDPOINT``
    (default ``http://localhost:4318``), ``OTEL_TRACES_SAMPLER``, ``OTEL_SERVICE_NAME`` and others. With
    ``OTEL_SDK_DISABLED=true`` this does nothing. ``service``: the service's name, unless the environment has one. A
    program that has set up OpenTelemetry's SDK itself keeps its setup: our spans join its traces. Remaining spans are
    sent when the process ends, for up to 3 seconds. A repeated call does nothing.

    Raises MissingExtraError (``pip install 'penstock[tracing]'``), InvalidArgumentError: the environment asks for a
    protocol other than ``http/protobuf``.
    """
    started = begin_tracing({"service.name": service})
    if started is not None:
        atexit.register(started)


def begin_tracing(attributes: Mapping[str, Value], *, delay_ms: float | None = None) -> Callable[[], None] | None:
    """As ``start_tracing``, with the attributes of the process. Returns the function that sends what is left and ends
    tracing; None: tracing is on already, or disabled. ``delay_ms``: how long spans are collected, unless the environment
    has a value."""
    if traces.active() is not None or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    named = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), _PROTOCOL)
    if named != _PROTOCOL:
        raise InvalidArgumentError("spans can be sent by http/protobuf only", protocol=named[:40])
    try:
        from penstock.net.traces.open_telemetry import Export, OpenTelemetryTracer, program_provider
    except ImportError as error:
        raise missing_extra(error.name or "opentelemetry", "tracing") from error
    provider = program_provider()
    if provider is not None:
        traces.install(OpenTelemetryTracer(provider))
        return lambda: traces.install(None)
    export = Export(attributes, None if "OTEL_BSP_SCHEDULE_DELAY" in os.environ else delay_ms)
    traces.install(OpenTelemetryTracer(export.provider))

    def end() -> None:
        traces.install(None)
        export.close()

    return end


@contextmanager
def tracing(process: str, *, on: bool) -> Iterator[None]:
    """Inside the block, this process of a server makes spans, if ``on``. Raises as ``start_tracing``."""
    end = begin_tracing({"service.name": "penstock", "penstock.process": process}) if on else None
    try:
        yield
    finally:
        if end is not None:
            end()
