"""Controller calls that a client may make over a data connection: those that small transactions wait for.

Names, requests, replies and errors are those of the gRPC port. Source: docs/formats/wire.md, "Calls of the controller".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import Command
from penstock.model.errors import CorruptDataError, InternalError, PenstockError
from penstock.net.grpc.grpc_errors import encode_error
from penstock.net.native.serve import Answer, wire_answers
from penstock.net.wire.requests import ControllerCall
from penstock.ports.control.plane import ControlPlane

log = logging.getLogger(__name__)


def controller_calls(controller: ControlPlane) -> Mapping[str, ControllerCall]:
    """The ``calls`` of a ``WireServer`` in the controller's process. The controller is borrowed."""
    return {name: _call(name, answer) for name, answer in wire_answers(controller).items()}


def _call(name: str, answered: Answer) -> ControllerCall:
    async def answer(command: c.CallController) -> Command:
        try:
            return c.ControllerAnswered(command.rid, await answered(bytes(command.request)))
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

    return answer
