"""Spans of planning and of tasks: one trace runs from the plan to every executor that reads for it.

Spark plans, and reads, in processes of its own. ``PENSTOCK_TRACES=1`` in their environment turns tracing on there; the
plan passes its span to the tasks in their shares. ``TRACEPARENT`` in the driver's environment names the span around
it all, as OpenTelemetry's tools set it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.model.traces.spans import ROOT, Kind, Span, Value, context_of_header, spanning

VARIABLE = "PENSTOCK_TRACES"
_AROUND = "TRACEPARENT"
_DELAY_MS = 200.0
"""How long spans are collected: short, because Spark ends idle workers without notice."""


def begin_if_wanted() -> None:
    """Make spans in this process from now on, if its environment asks for it. Raises MissingExtraError."""
    if os.environ.get(VARIABLE, "").strip().lower() in ("1", "true"):
        # Imported late: a worker without tracing must not load it.
        from penstock.net.traces.start import begin_tracing

        begin_tracing({"service.name": "penstock-spark", "penstock.process": "spark"}, delay_ms=_DELAY_MS)


@contextmanager
def spark_span(name: str, attributes: Mapping[str, Value], around: str = "") -> Iterator[Span]:
    """A span over the block. ``around``: the ``traceparent`` of the span that it belongs to; empty: that of the
    environment, if it names one."""
    begin_if_wanted()
    parent = context_of_header(around or os.environ.get(_AROUND, ""))
    with spanning(name, Kind.CLIENT, attributes, parent=parent if parent != ROOT else None) as span:
        yield span


def header_of(span: Span) -> str:
    """What tasks get as ``around``; empty if nothing is recorded."""
    return span.context.to_header() if span.context.sampled else ""
