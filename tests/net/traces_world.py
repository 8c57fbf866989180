"""A tracer in memory: what it made can be looked at, and one seedless counter names it."""

from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count

from penstock.model.traces import spans as traces
from penstock.model.traces.spans import ROOT, SpanContext


class MadeSpan:
    def __init__(self, name, kind, attributes, parent, context, start_ns):
        self.name, self.kind, self.attributes, self.parent = name, kind, dict(attributes), parent
        self.context, self.start_ns = context, start_ns
        self.end_ns = self.error = None

    def set(self, name, value):
        self.attributes[name] = value

    def end(self, error=None, *, at_ns=None):
        assert self.end_ns is None, "a span ends once"
        self.end_ns, self.error = at_ns or MemoryTracer.time_ns(), error


class MemoryTracer:
    """Implements ``model.traces.spans.Tracer``. ``sampled``: of traces that begin here."""

    _ticks = count(1)

    def __init__(self, *, sampled=True):
        self.spans = []
        self._sampled = sampled
        self._ids = count(1)
        self._current = ContextVar("span", default=ROOT)

    @classmethod
    def time_ns(cls):
        return next(cls._ticks)

    def start(self, name, kind, attributes, *, parent=None, at_ns=None):
        around = self._current.get() if parent is None else parent
        own = next(self._ids)
        sampled = self._sampled if around == ROOT else around.sampled
        context = SpanContext(around.trace_id or own << 64, own, sampled)
        span = MadeSpan(name, kind, attributes, around, context, at_ns or self.time_ns())
        self.spans.append(span)
        return span

    def now_ns(self):
        return self.time_ns()

    def current(self):
        found = self._current.get()
        return None if found == ROOT else found

    @contextmanager
    def within(self, context):
        token = self._current.set(context)
        try:
            yield
        finally:
            self._current.reset(token)


@contextmanager
def tracing(**settings):
    """A tracer in memory, installed for the block."""
    tracer = MemoryTracer(**settings)
    traces.install(tracer)
    try:
        yield tracer
    finally:
        traces.install(None)
