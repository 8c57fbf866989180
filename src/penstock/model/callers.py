"""Who makes a change and why: passed along with a call to the audit entry of the change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from penstock.model.errors import InvalidArgumentError
from penstock.model.identity import Identity
from penstock.model.traces.spans import apart
from penstock.model.values.dataclass import dataclass

TEXT_MAX = 1_000  # characters of who and why; they go into each audit entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a call. ``who`` and ``why`` are what the caller states; nothing verifies them. ``via``: the interface,
    such as ``cli``, ``grpc`` or ``http``; ``peer``: the address of the caller. An empty field is not known.

    ``identity`` is what the server has verified; None where callers need no identity.

    Raises InvalidArgumentError: a field is not text, or longer than 1,000 characters.
    """

    who: str = ""
    why: str = ""
    via: str = ""
    peer: str = ""
    identity: Identity | None = None

    def __post_init__(self) -> None:
        for name, value in self.as_fields().items():
            if not isinstance(value, str) or not value.isprintable():
                raise InvalidArgumentError("who and why must each be one line of text", field=name)
            if len(value) > TEXT_MAX:
                raise InvalidArgumentError("text is too long", field=name, length=len(value), limit=TEXT_MAX)

    def as_fields(self) -> dict[str, str]:
        """What is known, for JSON."""
        identity = "" if self.identity is None else self.identity.name
        fields = {"who": self.who, "why": self.why, "via": self.via, "peer": self.peer, "identity": identity}
        return {name: value for name, value in fields.items() if value}


_CURRENT: ContextVar[Caller | None] = ContextVar("penstock_caller", default=None)


def current_caller() -> Caller | None:
    """Who makes the current call; None: the store itself, or an unnamed caller."""
    return _CURRENT.get()


def verified_name() -> str | None:
    """The verified identity of the current caller; None: there is no caller, or callers need no identity."""
    caller = _CURRENT.get()
    return None if caller is None or caller.identity is None else caller.identity.name


_REQUEST: ContextVar[str] = ContextVar("penstock_request", default="")


def current_request() -> str:
    """The request that is being answered, such as ``streams.create`` or ``GET /v1/scopes``; empty: none."""
    return _REQUEST.get()


@contextmanager
def unattributed() -> Iterator[None]:
    """Inside the block, there is no caller and no span. For work, and its tasks, that a call triggers but does not
    request."""
    token, request = _CURRENT.set(None), _REQUEST.set("")
    try:
        with apart():
            yield
    finally:
        _REQUEST.reset(request)
        _CURRENT.reset(token)


@contextmanager
def calling(caller: Caller, request: str = "") -> Iterator[None]:
    """Inside the block, calls of this thread or task, and of tasks that they start, are made by ``caller``, in the
    request of that name. It must hold no secret: it is logged."""
    token, outer = _CURRENT.set(caller), _REQUEST.set(request)
    try:
        yield
    finally:
        _REQUEST.reset(outer)
        _CURRENT.reset(token)
