"""Spans: what a program does and for how long, in traces that cross processes. Off until a tracer is installed.

A process has one tracer, like its logging configuration: spans are made in many modules, and no decision depends on
them. Without a tracer, each place costs one comparison. Source: docs/design/0058-traces.md.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from penstock.model.values.dataclass import dataclass

Value = str | int | float | bool

PARENT_KEY = "traceparent"
STATE_KEY = "tracestate"
"""W3C Trace Context: names of the header fields, in HTTP and in the metadata of gRPC."""

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_FORBIDDEN_VERSION = "ff"
_STATE_MAX = 512  # characters of a tracestate that are passed on; the standard asks for at least as many
_BYTES = struct.Struct(">B16s8sB")
_BYTES_VERSION = 1


class Kind(enum.Enum):
    """The role of a span, as OpenTelemetry names it."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    PRODUCER = "PRODUCER"


@dataclass(frozen=True, slots=True)
class SpanContext:
    """Names a span to another process. ``state`` belongs to the vendors of tracing tools, and is passed on unread."""

    trace_id: int
    span_id: int
    sampled: bool
    state: str = ""

    def to_header(self) -> str:
        """The text of a ``traceparent``."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"

    def to_bytes(self) -> bytes:
        """26 bytes, without ``state``. ``context_of_bytes`` reads them."""
        ids = self.trace_id.to_bytes(16, "big"), self.span_id.to_bytes(8, "big")
        return _BYTES.pack(_BYTES_VERSION, *ids, int(self.sampled))


ROOT = SpanContext(0, 0, sampled=False)
"""As a parent: the span begins a trace of its own."""


def context_of_header(parent: str, state: str = "") -> SpanContext:
    """The span that a caller names, or ``ROOT`` if the text is not a valid ``traceparent``: never an error, as the standard
    demands."""
    found = _PARENT.fullmatch(parent.strip())
    if found is None:
        return ROOT
    version, trace_id, span_id, flags, more = found.groups()
    known = SpanContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1), state[:_STATE_MAX])
    if version == _FORBIDDEN_VERSION or (version == "00" and more) or not (known.trace_id and known.span_id):
        return ROOT
    return known


def context_of_bytes(data: bytes) -> SpanContext | None:
    """The span that ``to_bytes`` wrote; None for anything else."""
    if len(data) != _BYTES.size:
        return None
    version, trace_id, span_id, flags = _BYTES.unpack(data)
    known = SpanContext(int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big"), bool(flags & 1))
    return known if version == _BYTES_VERSION and known.trace_id and known.span_id else None


class Span(Protocol):
    """Work in progress. Calls never fail and never block."""

    @property
    def context(self) -> SpanContext: ...

    def set(self, name: str, value: Value) -> None:
        """Set an attribute."""
        ...

    def end(self, error: BaseException | None = None, *, at_ns: int | None = None) -> None:
        """The work has ended, with ``error`` if it failed. ``at_ns``: when; None: now."""
        ...


class Tracer(Protocol):
    """Makes spans. Calls never fail and never block."""

    def start(
        self,
        name: str,
        kind: Kind,
        attributes: Mapping[str, Value],
        *,
        parent: SpanContext | None = None,
        at_ns: int | None = None,
    ) -> Span:
        """Begin a span inside ``parent``; None: inside the current one. ``at_ns``: nanoseconds since the Unix epoch, by
        ``now_ns``; None: now."""
        ...

    def now_ns(self) -> int:
        """The time for ``at_ns``."""
        ...

    def current(self) -> SpanContext | None:
        """The current span of the calling task or thread."""
        ...

    def within(self, context: SpanContext) -> AbstractContextManager[object]:
        """Inside the block, ``context`` is the current span of the task, and of tasks that it starts. ``ROOT``: none is."""
        ...


class _NoSpan:
    """The span while tracing is off."""

    __slots__ = ()
    context = ROOT

    def set(self, name: str, value: Value) -> None: ...

    def end(self, error: BaseException | None = None, *, at_ns: int | None = None) -> None: ...


NO_SPAN = _NoSpan()
_TRACER: Tracer | None = None


def install(tracer: Tracer | None) -> None:
    """Make spans with ``tracer`` from now on; None: make none."""
    global _TRACER
    _TRACER = tracer


def active() -> Tracer | None:
    """The tracer of this process; None: tracing is off."""
    return _TRACER


def current() -> SpanContext | None:
    """The current span of the calling task or thread. None: there is none, or tracing is off."""
    return None if _TRACER is None else _TRACER.current()


@contextmanager
def spanning(
    name: str,
    kind: Kind = Kind.INTERNAL,
    attributes: Mapping[str, Value] | None = None,
    *,
    parent: SpanContext | None = None,
) -> Iterator[Span]:
    """A span over the block, current inside it. It ends with the error that leaves the block; a generator that is closed
    early has none. ``parent``: as ``Tracer.start``."""
    tracer = _TRACER
    if tracer is None:
        yield NO_SPAN
        return
    span = tracer.start(name, kind, attributes or {}, parent=parent)
    failed: BaseException | None = None
    try:
        with tracer.within(span.context):
            yield span
    except GeneratorExit:
        raise
    except BaseException as error:
        failed = error
        raise
    finally:
        span.end(failed)
        failed = None  # the error's traceback holds this frame


@contextmanager
def apart() -> Iterator[None]:
    """Inside the block, there is no current span: for work that a request triggers but does not ask for."""
    tracer = _TRACER
    if tracer is None:
        yield
        return
    with tracer.within(ROOT):
        yield


def append_attributes(segment: str, writer: str, number: int, count: int, size_bytes: int) -> dict[str, Value]:
    """The common attributes of an append's spans at the client and at the store, so that one can be found from the
    other."""
    return {
        **segment_attributes(segment, "append", "send"),
        "messaging.batch.message_count": count,
        "penstock.append.bytes": size_bytes,
        "penstock.writer.id": writer,
        "penstock.event.number": number,
    }


def segment_attributes(segment: str, operation: str, kind: str) -> dict[str, Value]:
    """The attributes of an operation on a segment, by OpenTelemetry's conventions for messaging. ``kind``: send, receive or
    another type of operation that they know."""
    return {
        "messaging.system": "penstock",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": segment.rpartition("/")[0],
        "messaging.destination.partition.id": segment.rpartition("/")[2],
    }


def current_headers() -> tuple[tuple[str, str], ...]:
    """The header fields that name the current span to another process; empty without a span."""
    context = current()
    if context is None:
        return ()
    parent = (PARENT_KEY, context.to_header())
    return (parent, (STATE_KEY, context.state)) if context.state else (parent,)
