"""Services that refuse what the caller has no right to: one wrapper behind all doors.

The caller is the identity that the door verified (``model.callers``). A call without one is refused: the store's own
work uses the services themselves, never the wrappers.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

from penstock.codec.values import Call
from penstock.core.access.calls import CALLS, Rule, of_found, on_stream, seen
from penstock.core.access.resources import STORE, grant_text
from penstock.core.access.rights import Need, meets, missing
from penstock.model.callers import current_caller
from penstock.model.errors import AccessError, ConflictError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from penstock.model.identity import Action, Grant, Identity
from penstock.model.policies import StreamConfig
from penstock.net.native.calls import control_calls, segment_calls
from penstock.ports.control.batches import Batches
from penstock.ports.control.cuts import Cuts
from penstock.ports.control.erasures import Cases, Erasures
from penstock.ports.control.evidence import Evidence
from penstock.ports.control.groups import ReaderGroups
from penstock.ports.control.holds import Approvals, Holds
from penstock.ports.control.layout import Layout
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.policies import Policies
from penstock.ports.control.retention import Retention
from penstock.ports.control.scopes import Scopes
from penstock.ports.control.streams import Streams
from penstock.ports.control.subscribers import Subscribers
from penstock.ports.control.tables import KeyValueTables
from penstock.ports.control.transactions import Transactions
from penstock.ports.data.service import SegmentService

Arguments: TypeAlias = Mapping[str, Any]
_RESOURCE_MAX = 600  # characters in an error; legal names are shorter
Refused: TypeAlias = Callable[[AccessError], None]
"""Receives each refusal, on the spot: it must be fast."""


class _Method(Protocol):
    def __call__(self, *arguments: Any, **named: Any) -> Awaitable[Any]: ...


class Rights:
    """Decides whether the current caller may make a call. ``plane`` finds what ids stand for; it is borrowed."""

    def __init__(self, plane: ControlPlane, refused: Refused) -> None:
        self._plane = plane
        self._refused = refused

    def identity(self, call: str) -> Identity:
        """The verified identity of the caller. Raises UnauthenticatedError."""
        caller = current_caller()
        if caller is None or caller.identity is None:
            raise self._noted(UnauthenticatedError("this call needs credentials", call=call))
        return caller.identity

    def check(self, call: str, needs: Sequence[Need]) -> Identity:
        """The caller's identity, which meets the needs. Raises UnauthenticatedError, PermissionDeniedError."""
        identity = self.identity(call)
        lacks = missing(identity, needs)
        if lacks is not None:
            raise self._denied(call, identity, lacks)
        return identity

    async def rule(self, call: str, given: Arguments) -> tuple[Rule, Identity]:
        """The rule of the call and the caller's identity, which may make it with these arguments."""
        rule = CALLS.get(call)
        if rule is None:
            raise self._denied(call, self.identity(call), None)
        if rule.found_by:
            return rule, await self._check_found(call, rule, given)
        return rule, self.check(call, rule.needs(given))

    async def pinned(self, call: str, identity: Identity, given: Arguments) -> Arguments:
        """Return the arguments for the call. What was checked must still hold when the call is performed."""
        if call == "streams.update" and (before := await self._check_retention(identity, given)) is not None:
            return {**given, "before": before}
        return given

    async def _check_found(self, call: str, rule: Rule, given: Arguments) -> Identity:
        """Check the right on the hold, erasure, case or request that the call names. A caller without any such right gets
        the same answer whether it exists or not."""
        identity = self.identity(call)
        if rule.found_by == "hold":
            holds = await self._plane.holds.list()
            found: Any = next((item for item in holds if item.id == given["hold_id"]), None)
        else:
            get = self._plane.cases.get if rule.found_by == "case" else self._plane.erasures.get
            try:
                if rule.found_by == "approval":
                    found = await self._plane.approvals.get(given["request"])
                else:
                    found = await get(given[rule.found_by])
            except NotFoundError:
                found = None
        anywhere = Need.of(rule.actions, "/")
        if missing(identity, (anywhere,) if found is None else of_found(rule, found)) is not None:
            raise self._denied(call, identity, anywhere)
        return identity

    async def _check_retention(self, identity: Identity, given: Arguments) -> StreamConfig | None:
        """The configuration of a stream includes its retention. A change of that needs the right to retain. Without the
        right, returns the configuration that the call must still find."""
        stream = given["stream"]
        need = on_stream({Action.RETAIN}, stream)
        if meets(identity, need):
            return None
        before = await self._plane.streams.config(stream)
        if before.retention != given["config"].retention:
            raise self._denied("streams.update", identity, need)
        expected = given.get("before")
        if expected is not None and expected != before:
            raise ConflictError("the configuration has changed since it was read; read it again", stream=str(stream))
        return before

    def _denied(self, call: str, identity: Identity, need: Need | None) -> AccessError:
        named = {} if need is None else {"needs": _text(need)}
        return self._noted(
            PermissionDeniedError("the caller has no right to this", call=call, identity=identity.name, **named)
        )

    def _noted(self, error: AccessError) -> AccessError:
        self._refused(error)
        return error


def _text(need: Need) -> str:
    """What is missing, as a right that could be granted; of many actions any one."""
    actions, resource = need.options[0]
    if len(resource) > _RESOURCE_MAX:
        # No legal name is as long: it is the caller's text, and refusals are logged.
        resource = f"{resource[:_RESOURCE_MAX]}..."
    if len(actions) > 3:
        # A right to metrics is for the store alone, so elsewhere nobody expects it to suffice.
        others = [one for one in Action if one not in actions and (one is not Action.METRICS or resource == STORE)]
        return f"any right{' but ' if others else ''}{' and '.join(others)} on {resource}"
    return " or ".join(grant_text(Grant(resource, frozenset({one}))) for one in Action if one in actions)


class _Guarded:
    """The calls of one subject. ``subject`` returns the service behind it."""

    def __init__(self, calls: Mapping[str, Call], subject: Callable[[], Any], rights: Rights) -> None:
        for name, call in calls.items():
            setattr(self, name, _guard(call, name, subject, rights))


def _guard(call: Call, name: str, subject: Callable[[], Any], rights: Rights) -> _Method:
    signature = inspect.signature(call.declared)

    async def made(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(None, *arguments, **named)
        bound.apply_defaults()
        rule, identity = await rights.rule(call.name, bound.arguments)
        method: _Method = getattr(subject(), name)
        given = {key: value for key, value in bound.arguments.items() if key != "self"}
        if not rule.shows:
            return await method(**await rights.pinned(call.name, identity, given))
        return await _listed(method, rule, identity, given)

    made.__name__, made.__doc__ = call.name, call.declared.__doc__
    return made


async def _listed(method: _Method, rule: Rule, identity: Identity, given: dict[str, Any]) -> Sequence[Any]:
    """What the caller may see. An empty page means the end, so pages of which nothing may be seen are passed over."""
    if "after" not in given:
        return seen(identity, rule, given, await method(**given))
    while page := await method(**given):
        shown = seen(identity, rule, given, page)
        if shown:
            return shown
        given["after"] = page[-1]
    return []


class GuardedControl:
    """A ``ControlPlane`` for callers with an identity. Every call raises what the plane raises, UnauthenticatedError and
    PermissionDeniedError. The plane is borrowed.

    ``refused`` is called with each refusal.
    """

    def __init__(self, plane: ControlPlane, refused: Refused) -> None:
        self.plane = plane
        self.rights = Rights(plane, refused)
        calls = control_calls()

        def subject(name: str) -> _Guarded:
            return _Guarded(calls[name], lambda: getattr(plane, name), self.rights)

        self.scopes = cast(Scopes, subject("scopes"))
        self.streams = cast(Streams, subject("streams"))
        self.layout = cast(Layout, subject("layout"))
        self.cuts = cast(Cuts, subject("cuts"))
        self.transactions = cast(Transactions, subject("transactions"))
        self.batches = cast(Batches, subject("batches"))
        self.groups = cast(ReaderGroups, subject("groups"))
        self.subscribers = cast(Subscribers, subject("subscribers"))
        self.policies = cast(Policies, subject("policies"))
        self.retention = cast(Retention, subject("retention"))
        self.holds = cast(Holds, subject("holds"))
        self.erasures = cast(Erasures, subject("erasures"))
        self.cases = cast(Cases, subject("cases"))
        self.evidence = cast(Evidence, subject("evidence"))
        self.approvals = cast(Approvals, subject("approvals"))
        self.tables = cast(KeyValueTables, subject("tables"))


def guarded_segments(segments: SegmentService, rights: Rights) -> SegmentService:
    """The native calls of a segment store, those that it offers, for callers with an identity. It has no other calls:
    the data path checks tokens. Borrowed."""
    offered = {name: call for name, call in segment_calls().items() if getattr(segments, name, None) is not None}
    return cast(SegmentService, _Guarded(offered, lambda: segments, rights))


def check_may(control: ControlPlane, call: str, **given: Any) -> None:
    """Check the rights for a call that is made later, as the last step of several: so that none of them is made without
    it. Does nothing on a plane without a guard. Raises UnauthenticatedError, PermissionDeniedError."""
    if isinstance(control, GuardedControl):
        control.rights.check(call, CALLS[call].needs(given))


def by_the_store(control: ControlPlane) -> ControlPlane:
    """The plane behind the guard, for work that the store does by itself: no caller asked for it."""
    return control.plane if isinstance(control, GuardedControl) else control
