"""The link between a server and one of its worker processes: calls in both directions over one connection.

The server makes a pair of sockets, and the worker inherits its end. No other process can reach it, so there is no
authentication. When either process ends, the link ends for the other. ``tcp_link`` has links between machines.

A frame is a header, a text and byte strings (``worker_values``). Frames arrive in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from penstock.model.errors import InternalError, NotConnectedError, PenstockError, ProtocolError, ThrottledError
from penstock.model.traces.spans import Kind, SpanContext, context_of_header, current, spanning
from penstock.net.workers.values import decode_error, decode_value, encode_error, encode_value
from penstock.ports.files import Buffer

log = logging.getLogger(__name__)

_HEADER = struct.Struct(">IIBQ")
_CALL, _ANSWER, _ERROR, _CANCEL = range(4)
_FRAME_MAX_BYTES = 1 << 30
_WRITE_BUFFER_BYTES = 8 << 20
_JOIN_BYTES = 64 << 10
_TRACED = "traced"
"""The first word of a call that names the span around it: the text of a ``traceparent``, and the call, follow."""
_CALLS_MAX = 8192  # concurrent calls; further ones are refused, which bounds the memory of a slow worker

Answer = Callable[[object], None]
"""Receives the result of a call, or the PenstockError that it failed with; called once, from the event loop."""
Handler = Callable[..., Awaitable[Any]]
Taker = Callable[..., None]
"""Handles a call at once, in the order of the frames; its first argument is the ``Answer`` to call."""


class LinkDownError(NotConnectedError):
    """The other process has ended, and the call was never sent to it."""


class WorkerLink(asyncio.Protocol):
    """One end. ``handlers`` answer calls of the other end, each in a task; ``takers`` answer theirs at once, without a
    task.

    ``closed`` is done once the other end has ended or ``close`` was called; calls in flight then fail with
    NotConnectedError. ``may_answer`` is asked before each answer: false drops the connection instead. Made by
    ``open_link`` and ``tcp_link``.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        handlers: Mapping[str, Handler],
        takers: Mapping[str, Taker],
        may_answer: Callable[[], bool] | None = None,
    ) -> None:
        self.name = name
        self.closed: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._handlers = handlers
        self._takers = takers
        self._may_answer = may_answer
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._last_id = 0
        self._owed: dict[int, Answer] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._writable = asyncio.Event()
        self._writable.set()

    # --- the transport's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        for task in self._serving.values():
            task.cancel()
        owed, self._owed = self._owed, {}
        for answer in owed.values():
            answer(self._lost())
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start = 0
        try:
            while len(received) - start >= _HEADER.size:
                size, text_size, kind, number = _HEADER.unpack_from(received, start)
                if size > _FRAME_MAX_BYTES or text_size > size:
                    raise ProtocolError("frame between processes has an invalid size", size_bytes=size)
                first = start + _HEADER.size
                if len(received) < first + size:
                    break
                start = first + size
                with memoryview(received) as view:
                    self._take(kind, number, view[first : first + text_size], view[first + text_size : start])
        except ProtocolError as error:
            log.error("link between processes is broken", extra={"line": self.name, "reason": str(error)})
            self.close()
        # A traceback may still hold a view: a new buffer costs less than finding it.
        self._received = bytearray(memoryview(received)[start:]) if start else received

    def _take(self, kind: int, number: int, text: memoryview, rest: memoryview) -> None:
        if kind == _CALL:
            self._called(number, decode_value(text, rest))
        elif kind == _CANCEL:
            task = self._serving.get(number)
            if task is not None:
                task.cancel()
        elif kind in (_ANSWER, _ERROR):
            # Decoded first: a call whose answer is no value must stay owed, so that it fails with the link.
            outcome = decode_error(text, rest) if kind == _ERROR else decode_value(text, rest)
            answer = self._owed.pop(number, None)
            if answer is not None:
                answer(outcome)
        else:
            raise ProtocolError("unknown kind of frame between processes", kind=kind)

    # --- calls of the other end ---

    def _called(self, number: int, call: Any) -> None:
        method, arguments, around = _parts_of(call)
        taker = self._takers.get(method)
        if taker is not None:
            self._hand_over(taker, number, arguments)
            return
        handler = self._handlers.get(method)
        if handler is None:
            self._reply(number, InternalError("unknown call between processes", call=method))
        elif len(self._serving) >= _CALLS_MAX:
            # Pausing the socket would also delay the answers that calls in flight wait for.
            self._reply(number, ThrottledError("too many concurrent calls", resource="calls", limit=_CALLS_MAX))
        else:
            task = self._loop.create_task(self._serve(number, handler, arguments, around, method))
            self._serving[number] = task
            task.add_done_callback(lambda _: self._serving.pop(number, None))

    def _hand_over(self, taker: Taker, number: int, arguments: Sequence[Any]) -> None:
        try:
            taker(lambda outcome: self._reply(number, outcome), *arguments)
        except PenstockError as error:
            self._reply(number, error)
        except Exception as error:
            log.error("call between processes failed", extra={"line": self.name}, exc_info=error)
            self._reply(number, InternalError("call failed", reason=repr(error)[:500]))

    async def _serve(
        self, number: int, handler: Handler, arguments: Sequence[Any], around: SpanContext | None, method: str
    ) -> None:
        outcome: object
        try:
            if around is None:
                outcome = await handler(*arguments)
            else:
                with spanning(method, Kind.SERVER, {"rpc.system": "penstock", "rpc.method": method}, parent=around):
                    outcome = await handler(*arguments)
        except PenstockError as error:
            outcome = error
        except OSError as error:
            outcome = InternalError("system call failed", reason=str(error))
        except Exception as error:
            log.error("call between processes failed", extra={"line": self.name}, exc_info=error)
            outcome = InternalError("call failed", reason=repr(error)[:500])
        try:
            await self._writable.wait()
            self._reply(number, outcome)
        finally:
            del outcome  # The error's traceback holds this frame, which would keep the arguments alive.

    def _reply(self, number: int, outcome: object) -> None:
        if self._may_answer is not None and self.is_open and not self._may_answer():
            log.warning("link closed instead of an answer", extra={"line": self.name})
            self.abort()
            return
        try:
            if isinstance(outcome, PenstockError):
                self._send(_ERROR, number, *encode_error(outcome))
            else:
                self._send(_ANSWER, number, *encode_value(outcome))
        except InternalError as error:
            self._send(_ERROR, number, *encode_error(error))

    # --- calls to the other end ---

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and not self.closed.done()

    def start(self, answer: Answer, method: str, *arguments: object) -> int:
        """Send a call now, and return its number. Raises LinkDownError: nothing was sent."""
        if not self.is_open:
            raise LinkDownError("the other process has ended", line=self.name)
        span = current()
        traced = () if span is None or not span.sampled else (_TRACED, span.to_header())
        text, beside = encode_value([*traced, method, *arguments])
        self._last_id += 1
        self._owed[self._last_id] = answer
        self._send(_CALL, self._last_id, text, beside)
        return self._last_id

    async def call(self, method: str, *arguments: object) -> Any:
        """The result. Raises what the other end raised, and NotConnectedError if it ended: the call may or may not have
        happened. After LinkDownError it did not. Cancelled: the other end gets a request to stop."""
        await self._writable.wait()
        reply: asyncio.Future[Any] = self._loop.create_future()

        def resolve(outcome: object) -> None:
            if reply.done():
                return
            if isinstance(outcome, PenstockError):
                reply.set_exception(outcome)
            else:
                reply.set_result(outcome)

        number = self.start(resolve, method, *arguments)
        try:
            return await reply
        except asyncio.CancelledError:
            if self._owed.pop(number, None) is not None and self.is_open:
                self._send(_CANCEL, number, b"", ())
            raise

    def close(self) -> None:
        """Send what is queued, then end the line."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the line at once. What is queued is lost."""
        if self._transport is not None:
            self._transport.abort()

    def _send(self, kind: int, number: int, text: bytes, beside: Sequence[Buffer]) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        rest = sum(item.nbytes if isinstance(item, memoryview) else len(item) for item in beside)
        header = _HEADER.pack(len(text) + rest, len(text), kind, number)
        if rest <= _JOIN_BYTES:
            transport.write(b"".join((header, text, *beside)))
        else:
            transport.writelines([header, text, *beside])

    def _lost(self) -> NotConnectedError:
        return NotConnectedError("the other process has ended", line=self.name)


def _parts_of(call: object) -> tuple[str, Sequence[Any], SpanContext | None]:
    """Method, arguments, and the span around the call. Raises ProtocolError."""
    match call:
        case [str() as traced, str() as parent, str() as method, *arguments] if traced == _TRACED:
            return method, arguments, context_of_header(parent)
        case [str() as method, *arguments] if method != _TRACED:
            return method, arguments, None
    raise ProtocolError("not a call between processes")


async def open_link(
    sock: socket.socket,
    *,
    name: str,
    handlers: Mapping[str, Handler],
    takers: Mapping[str, Taker] | None = None,
    may_answer: Callable[[], bool] | None = None,
) -> WorkerLink:
    """A link over one end of a connected pair, which it closes. ``name`` is for logs. ``may_answer``: see
    ``WorkerLink``."""
    loop = asyncio.get_running_loop()
    link = WorkerLink(loop, name, handlers, takers or {}, may_answer)
    sock.setblocking(False)
    await loop.create_connection(lambda: link, sock=sock)
    return link
