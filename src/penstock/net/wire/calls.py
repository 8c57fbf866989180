"""Calls of the controller that a client may make over a data connection: those that small transactions wait for.

A call over gRPC costs each side some 0.4 ms of CPU, whatever it does; over a connection that is there anyway, a tenth of it.
Names, messages and errors are those of the gRPC port. Source: docs/formats/wire.md, "Calls of the controller".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from google.protobuf.descriptor import MethodDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]

from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import Command
from penstock.model.errors import CorruptDataError, InternalError, InvalidArgumentError, PenstockError
from penstock.net.grpc.dispatch import Annotated, Handler
from penstock.net.grpc.groups import TransactionCalls
from penstock.net.grpc.grpc_errors import encode_error
from penstock.net.grpc.native import answer_commit_events
from penstock.net.proto import Controller_pb2
from penstock.net.proto import native_pb2 as native
from penstock.net.wire.requests import ControllerCall
from penstock.ports.control.plane import ControlPlane

log = logging.getLogger(__name__)

OFFERED = (
    "createTransaction",
    "commitTransaction",
    "abortTransaction",
    "pingTransaction",
    "checkTransactionState",
)
"""Calls of Pravega's controller; of ours it is ``CommitEvents`` alone."""


def controller_calls(controller: ControlPlane) -> Mapping[str, ControllerCall]:
    """What a ``WireServer`` in the controller's process is given; the controller is borrowed."""
    service = Controller_pb2.DESCRIPTOR.services_by_name["ControllerService"]
    handlers = TransactionCalls(controller).handlers()
    calls = {name: _call(service.methods_by_name[name], handlers[name]) for name in OFFERED}

    async def commit_events(request: native.CommitEventsRequest) -> native.CommitEventsResponse:
        return await answer_commit_events(controller, request)

    method = native.DESCRIPTOR.services_by_name["Native"].methods_by_name["CommitEvents"]
    return calls | {method.name: _call(method, commit_events)}


def _call(method: MethodDescriptor, handler: Handler) -> ControllerCall:
    name = method.name
    request_class = GetMessageClass(method.input_type)

    async def answer(command: c.CallController) -> Command:
        try:
            try:
                request = request_class.FromString(bytes(command.request))
            except DecodeError as error:
                raise InvalidArgumentError("request is not a message of this call", call=name) from error
            reply = await handler(request)
        except asyncio.CancelledError:
            raise
        except PenstockError as error:
            if isinstance(error, InternalError | CorruptDataError):
                log.exception("call failed", extra={"call": name})
            return c.ControllerRefused(command.rid, encode_error(error))
        except Exception:
            log.exception("call failed unexpectedly", extra={"call": name})
            failure = InternalError("the server failed; its log says why", call=name)
            return c.ControllerRefused(command.rid, encode_error(failure))
        if isinstance(reply, Annotated):
            return c.ControllerAnswered(command.rid, reply.message.SerializeToString(), reply.metadata[1])
        return c.ControllerAnswered(command.rid, reply.SerializeToString())

    return answer
