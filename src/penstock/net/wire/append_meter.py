"""Counts the appends of one connection, and measures some of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from penstock.model.traces.spans import ROOT, Kind, Span, SpanContext, Tracer, Value, active, context_of_bytes, spanning
from penstock.ports.telemetry import Telemetry


def serving(request: str, segment: str, around: SpanContext | None) -> AbstractContextManager[object]:
    """The span of a request whose client names the span ``around``; nothing if it names none."""
    if around is None:
        return _NOTHING
    attributes = {"messaging.system": "penstock", "penstock.segment": segment}
    return spanning(request, Kind.SERVER, attributes, parent=around)


_NOTHING = nullcontext()


class Measured(Protocol):
    """What is measured as one append: a single one, or all appends of a run or of a frame."""

    def attributes(self) -> Mapping[str, Value]:
        """What a span reports of it; ``messaging.destination.name`` is among them."""
        ...


class _TracedAppend:
    """The span of an append. Its parts are made at its end, from the times at which they began."""

    __slots__ = ("arrived_ns", "began_ns", "durable_ns", "span")

    def __init__(self, span: Span, began_ns: int, arrived_ns: int) -> None:
        self.span = span
        self.began_ns = began_ns
        self.arrived_ns = arrived_ns
        self.durable_ns = 0


class AppendMeter:
    """Counts, with plain numbers that the connections of a server share.

    It measures one append at a time, from its arrival to its acknowledgement. So all appends of a writer that waits for
    each acknowledgement are measured, and few of one that does not wait. With tracing, the measured appends, and those
    whose client names a span, have spans.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._steady_s = telemetry.steady_s
        self._tracer = active()
        self._timed: object = None
        self._since_s = 0.0
        self._observe_s = telemetry.durations("wire_append_seconds")
        self._appends = telemetry.tally("wire_appends")
        self._bytes = telemetry.tally("wire_appended_bytes")
        self._events = telemetry.tally("wire_appended_events")
        self.around: SpanContext | None = None
        """The span that the client named for its next request; None: it named none."""
        self._named_ns = 0
        self._traced: dict[Measured, _TracedAppend] = {}
        self._stored: list[_TracedAppend] = []

    def named(self, data: bytes) -> bool:
        """The client names the span of its next request. False: it does not."""
        context = context_of_bytes(data)
        if context is not None and self._tracer is not None:
            self.around, self._named_ns = context, self._tracer.now_ns()
        return context is not None

    def take_named(self) -> SpanContext | None:
        """The span around the request that arrives now; None: the client named none."""
        context, self.around = self.around, None
        return context

    def arrived(self, item: Measured) -> None:
        if self._timed is None:
            self._timed, self._since_s = item, self._steady_s()
        if self._tracer is not None and (self._timed is item or self.around is not None):
            self._begin(self._tracer, item)

    def _begin(self, tracer: Tracer, item: Measured) -> None:
        now_ns, around = tracer.now_ns(), self.take_named()
        began_ns = now_ns if around is None else self._named_ns
        attributes = item.attributes()
        name = f"store {attributes['messaging.destination.name']}"
        span = tracer.start(name, Kind.SERVER, attributes, parent=around or ROOT, at_ns=began_ns)
        self._traced[item] = _TracedAppend(span, began_ns, now_ns)

    def acknowledged(self, item: Measured, appends: int, events: int, size_bytes: int) -> None:
        self._appends.value += appends
        self._events.value += events
        self._bytes.value += size_bytes
        if item is self._timed:
            self._observe_s(self._steady_s() - self._since_s)
        if self._traced:
            self._stored_now(item)

    def _stored_now(self, item: Measured) -> None:
        traced = self._traced.pop(item, None)
        if traced is not None and self._tracer is not None:
            traced.durable_ns = self._tracer.now_ns()
            self._stored.append(traced)

    def ended(self, item: Measured, error: BaseException | None = None) -> None:
        """The append has ended, whatever its outcome."""
        if item is self._timed:
            self._timed = None
        if self._traced and (traced := self._traced.pop(item, None)) is not None:
            traced.span.end(error)

    def throttled(self) -> None:
        """The store had no room for an append, which waits."""
        self._telemetry.add("wire_throttled_appends")

    def sent(self) -> None:
        """The acknowledgements so far are sent: their spans end."""
        if self._stored and self._tracer is not None:
            self._report_spans(self._tracer)

    def _report_spans(self, tracer: Tracer) -> None:
        now_ns = tracer.now_ns()
        stored, self._stored = self._stored, []
        for one in stored:
            parts = (
                ("receive and decode", one.began_ns, one.arrived_ns),
                ("commit to the log", one.arrived_ns, one.durable_ns),
                ("acknowledge", one.durable_ns, now_ns),
            )
            for name, start_ns, end_ns in parts:
                tracer.start(name, Kind.INTERNAL, {}, parent=one.span.context, at_ns=start_ns).end(at_ns=end_ns)
            one.span.end(at_ns=now_ns)
