"""Turns handlers, which return messages and raise typed errors, into gRPC methods that answer Pravega's clients and
ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.model.callers import Caller, calling, current_caller
from penstock.model.errors import (
    CorruptDataError,
    InternalError,
    InvalidArgumentError,
    PenstockError,
    UnsupportedError,
)
from penstock.model.traces.spans import PARENT_KEY, STATE_KEY, Kind, active, context_of_header, spanning
from penstock.net.access.doors import AUTHORIZATION, only
from penstock.net.grpc.grpc_errors import ERROR_KEY, code_of, details_of, encode_error, status_of
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

WHO_KEY = "penstock-who-bin"
WHY_KEY = "penstock-why-bin"
"""Metadata of a request, in UTF-8: who makes it and why. Both are optional."""


Handler = Callable[[Any], Awaitable[Message]]

Identify = Callable[[Caller, Any], Awaitable[Caller]]
"""Returns the caller of a call with its verified identity. Takes what the caller states, and the call's context."""


async def unverified(caller: Caller, _context: Any) -> Caller:
    """Callers need no identity."""
    return caller


def authorization_of(context: Any) -> str:
    """The credentials of a call, as its metadata has them. Raises UnauthenticatedError."""
    return only([_text(value) for key, value in context.invocation_metadata() or () if key == AUTHORIZATION])


# Pravega names the field that carries the outcome differently from call to call.
_STATUS_FIELDS = ("status", "result", "state")


def service_handler(
    service: ServiceDescriptor, handlers: Mapping[str, Handler], telemetry: Telemetry, identify: Identify = unverified
) -> grpc.GenericRpcHandler:
    """Serve ``service`` by the handlers, keyed by call name. A call without a handler is answered UNIMPLEMENTED and
    logged. ``identify`` returns the caller of each call, with its identity if callers need one.

    Raises: InternalError if a handler belongs to no call of the service.
    """
    surplus = sorted(set(handlers) - set(service.methods_by_name))
    if surplus:
        raise InternalError("handler of a call that the service lacks", service=service.full_name, calls=surplus)
    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            _guarded(
                name,
                handlers.get(name) or _unimplemented(name),
                telemetry,
                identify,
                GetMessageClass(method.output_type),
            ),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for name, method in service.methods_by_name.items()
    }
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _serving(name: str, context: Any) -> AbstractContextManager[object]:
    """The span of a call, inside the one that its metadata names."""
    if active() is None:
        return _UNTRACED
    stated = {key: _text(value) for key, value in context.invocation_metadata() or () if key in (PARENT_KEY, STATE_KEY)}
    parent = context_of_header(stated.get(PARENT_KEY, ""), stated.get(STATE_KEY, ""))
    return spanning(name, Kind.SERVER, {"rpc.system": "grpc", "rpc.method": name}, parent=parent)


_UNTRACED = nullcontext()


def caller_metadata() -> tuple[tuple[str, bytes], ...] | None:
    """The metadata that states who makes a call and why; None if nothing is known."""
    caller = current_caller()
    if caller is None:
        return None
    return tuple((key, text.encode()) for key, text in ((WHO_KEY, caller.who), (WHY_KEY, caller.why)) if text) or None


def _caller_of(context: Any) -> Caller:
    """Who makes the call, from its metadata and its connection. Raises InvalidArgumentError."""
    stated = {key: value for key, value in context.invocation_metadata() or () if key in (WHO_KEY, WHY_KEY)}
    who, why = (_text(stated.get(key, b"")) for key in (WHO_KEY, WHY_KEY))
    return Caller(who=who, why=why, via="grpc", peer=_host(context.peer()))


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _host(peer: str) -> str:
    """The client's address. It is in the name of the socket that the gate connected from (``net.grpc.gate``)."""
    return unquote(peer or "").rpartition("/")[2].partition("-")[2]


def status_field(message: type[Message] | Message) -> str | None:
    """The name of the field in which a reply carries its outcome, if it has one."""
    return next((name for name in _STATUS_FIELDS if name in message.DESCRIPTOR.fields_by_name), None)


def _unimplemented(name: str) -> Handler:
    async def refuse(_request: Message) -> Message:
        log.warning("call is not offered", extra={"rpc": name})
        raise UnsupportedError("the call is not offered by this server", rpc=name)

    return refuse


def own_handler(
    service: str,
    answers: Mapping[str, Callable[[bytes], Awaitable[bytes]]],
    telemetry: Telemetry,
    *,
    reply_bytes_max: int,
    identify: Identify = unverified,
) -> grpc.GenericRpcHandler:
    """Serve our own calls, whose requests and replies are bytes, keyed by name. A larger reply is InvalidArgumentError."""

    def bounded(name: str) -> Callable[[bytes], Awaitable[bytes]]:
        async def answer(request: bytes) -> bytes:
            reply = await answers[name](request)
            if len(reply) > reply_bytes_max:
                raise InvalidArgumentError(
                    "the reply is too large: request less at a time", size_bytes=len(reply), limit_bytes=reply_bytes_max
                )
            return reply

        return answer

    methods = {
        name: grpc.unary_unary_rpc_method_handler(_guarded(name, bounded(name), telemetry, identify))
        for name in answers
    }
    return grpc.method_handlers_generic_handler(service, methods)


def _guarded(
    name: str,
    handler: Callable[[Any], Awaitable[Any]],
    telemetry: Telemetry,
    identify: Identify,
    reply_class: type[Message] | None = None,
) -> Callable[[Any, Any], Awaitable[Any]]:
    """``reply_class``: the message that reports a refusal, if it has a field for the outcome."""
    field = None if reply_class is None else status_field(reply_class)

    async def call(request: Any, context: Any) -> Any:
        began_s, outcome = telemetry.steady_s(), "failed"
        try:
            with _serving(name, context), calling(await identify(_caller_of(context), context), name):
                reply = await handler(request)
            outcome = "ok"
            return reply
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except PenstockError as error:
            if isinstance(error, InternalError | CorruptDataError):
                log.exception("call failed", extra={"rpc": name})
            else:
                outcome = "refused"
            # Do not name the request in this frame: the error's traceback holds the frame, and the cycle would keep it
            # alive.
            return await refuse(error, context)
        except Exception:
            log.exception("call failed unexpectedly", extra={"rpc": name})
            return await refuse(InternalError("the server failed; its log says why", rpc=name), context)
        finally:
            telemetry.add("calls", 1, (name, outcome))
            telemetry.observe("call_seconds", telemetry.steady_s() - began_s)

    async def refuse(failure: PenstockError, context: Any) -> Message:
        metadata = ((ERROR_KEY, encode_error(failure)),)
        status = None if field is None else status_of(name, failure)
        if reply_class is None or field is None or status is None:
            await context.abort(code_of(failure), details_of(failure), metadata)
            raise InternalError("a call continued after it was aborted", rpc=name)  # never reached: abort raises
        context.set_trailing_metadata(metadata)
        return reply_class(**{field: status})

    return call
