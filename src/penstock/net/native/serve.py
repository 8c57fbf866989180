"""The server side of our own calls, over every transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

from penstock.codec.values import Call
from penstock.model.errors import UnsupportedError
from penstock.model.names import StreamName
from penstock.model.retention import PolicyTarget
from penstock.net.native.calls import OVER_THE_WIRE, StoreInfo, control_calls, info_call, segment_calls, token_calls
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.service import SegmentService

Answer: TypeAlias = Callable[[bytes], Awaitable[bytes]]
"""Turns a request into its reply. Raises what the call raises, and InvalidArgumentError for a malformed request."""


class Desk(Protocol):
    """Gives the current caller its tokens; see ``About``. Each may raise UnauthenticatedError."""

    def token(self, stream: StreamName) -> str: ...
    def plan(self, targets: Sequence[PolicyTarget], action: str, valid_s: int) -> str: ...
    def renew(self, valid_s: int) -> str: ...


_NOT_OFFERED = {
    "scrub": "a store with several workers cannot be scrubbed while it runs: run penstock spark scrub, "
    "or stop the store and run penstock scrub --data for the directory of each worker",
}
"""What to do instead, by the name of the call."""


def answers(
    controller: ControlPlane,
    segments: SegmentService,
    *,
    store_id: str,
    more: tuple[str, ...] = (),
    desk: Desk | None = None,
) -> Mapping[str, Answer]:
    """The answer to each call, by name; the services are borrowed. ``more``: further capabilities that the server
    reports. ``desk``: gives callers their tokens; None: they need none, and get empty ones."""
    found = _control_answers(controller)
    found |= {call.name: _answer(call, partial(_method, segments, name)) for name, call in segment_calls().items()}
    said = StoreInfo(version=version("penstock"), store_id=store_id, calls=tuple(sorted([*found, *more])))

    async def info() -> StoreInfo:
        return said

    return found | {
        info_call().name: _answer(info_call(), lambda: info),
        **{call.name: _answer(call, partial(_given, desk, name)) for name, call in token_calls().items()},
    }


def _given(desk: Desk | None, name: str) -> Callable[..., Awaitable[str]]:
    async def given(**arguments: Any) -> str:
        return "" if desk is None else str(getattr(desk, name)(**arguments))

    return given


def wire_answers(controller: ControlPlane) -> Mapping[str, Answer]:
    """The calls that are answered on connections to the segment store."""
    return {name: answer for name, answer in _control_answers(controller).items() if name in OVER_THE_WIRE}


def _control_answers(controller: ControlPlane) -> dict[str, Answer]:
    return {
        call.name: _answer(call, partial(attrgetter(f"{subject}.{name}"), controller))
        for subject, calls in control_calls().items()
        for name, call in calls.items()
    }


def _answer(call: Call, method: Callable[[], Callable[..., Awaitable[Any]]]) -> Answer:
    async def answer(request: bytes) -> bytes:
        return call.encode_reply(await method()(**call.decode_request(request)))

    return answer


def _method(segments: SegmentService, name: str) -> Callable[..., Awaitable[Any]]:
    """Raises UnsupportedError if this store does not offer the call: not every store adopts chunks or can be
    scrubbed."""
    found: Callable[..., Awaitable[Any]] | None = getattr(segments, name, None)
    if found is None:
        raise UnsupportedError(_NOT_OFFERED.get(name, "this store does not offer the call"), call=name)
    return found
