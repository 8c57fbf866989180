"""Every call of every door, made about ``shop/orders``: for tests of what each kind of caller may do."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from access_world import ORDERS, SEGMENT, Doors

from penstock.codec.values import Call
from penstock.model.cuts import StreamCut
from penstock.model.policies import StreamConfig
from penstock.model.retention import PolicyDocument
from penstock.model.segments import make_segment_id
from penstock.net.http.pulsar.api import _Facade
from penstock.net.http.pulsar.context import Admin
from penstock.net.native.calls import control_calls, segment_calls
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.tables import TableConfig
from penstock.ports.control.transactions import PositionCommit

SAMPLES: Mapping[str, Any] = {
    "scope": "shop", "stream": ORDERS, "target": ORDERS, "cut": StreamCut(ORDERS, {}), "position": StreamCut(ORDERS, {}),
    "segment": make_segment_id(0, 0), "names": [SEGMENT], "subscriber": "shop/app", "transactions": (),
    "config": None, "positions": PositionCommit(scope="shop", group="app", group_id=UUID(int=5), reader="r", id=UUID(int=1)),
    "start": StreamCut(ORDERS, {}), "end": StreamCut(ORDERS, {}), "hold_id": "none", "erasure": "none", "owner": "x",
}  # fmt: skip
CONFIGS = {"streams": StreamConfig(), "groups": ReaderGroupConfig(scope="shop", name="app", id=UUID(int=5))}


def request_of(subject: str, name: str, call: Call) -> bytes:
    """A request about the stream ``shop/orders``, its group or its segment, without what may be left out."""
    hints = typing.get_type_hints(call.declared)
    special: dict[str, Any] = {"name": SEGMENT if subject == "segments" else "app", "config": CONFIGS.get(subject)}
    if name == "endpoint":
        special["segment"] = SEGMENT
    if subject == "segments":
        special |= {"start": 0, "end": 0}
    if subject == "erasures":
        special |= {"positions": {}, "asked": {"erasure": "e", "who": "w", "why": "y", "looked_for": {}}}
    if subject == "cases":
        special |= {"targets": ("shop/orders",), "subject": {"by": "payload contains", "values": ["x"]}}
    if subject == "tables":
        special["config"] = TableConfig(partitions=1, primary_key_bytes=4, secondary_key_bytes=0, rollover_bytes=0)
    given: dict[str, Any] = {}
    for argument, parameter in inspect.signature(call.declared).parameters.items():
        if argument in special or argument in SAMPLES:
            given[argument] = special.get(argument, SAMPLES.get(argument))
        elif argument != "self" and parameter.default is inspect.Parameter.empty:
            given[argument] = plain_value(hints[argument])
    return call.encode_request((), given)


def plain_value(hint: Any) -> Any:
    plain = {int: 20_000, str: "x", bool: True, UUID: UUID(int=1), float: 0.5, PolicyDocument: PolicyDocument()}
    if hint in plain:
        return plain[hint]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in parts:
        return None
    return {} if origin is Mapping else ()


EVERY = {
    f"{subject}.{name}": (subject, name, call)
    for subject, calls in {**control_calls(), "segments": segment_calls()}.items()
    for name, call in calls.items()
}


def filled(path: str) -> str:
    names = {"scope": "shop", "stream": "orders", "group": "app", "subscriber": "shop/app", "tenant": "shop"}
    names |= {"namespace": "ns", "topic": "t", "subscription": "s", "id": "controller"}
    return re.sub(r"\{(\w+)(:\w+)?\}", lambda found: names.get(found[1], "x"), path)


def routes_of(opened: Doors) -> list[tuple[str, str]]:
    found = []
    for route in opened.rest.routes:
        path = route.path  # type: ignore[attr-defined]
        if "{rest" not in path:
            found += [(method, filled(path)) for method in sorted(route.methods or ())]  # type: ignore[attr-defined]
    facade = _Facade(Admin(opened.controller, opened.store, opened.clock), 6650)
    for calls in facade._calls.values():
        found += [(method, filled("/" + "/".join(words))) for method, words, _, _ in calls]
    return sorted({one for one in found if one[0] not in ("HEAD", "OPTIONS")})


def command_of(kind: Any, token: str) -> Any:
    plain: Mapping[Any, Any] = {int: 0, bool: False, str: SEGMENT, bytes: UUID(int=9).bytes, UUID: UUID(int=9)}
    fields = {}
    for name, hint in typing.get_type_hints(kind).items():
        text = str(hint)
        fields[name] = plain.get(hint, b"" if "memoryview" in text or "bytes" in text else [])
    return kind(
        **{**fields, **({"rid": 7} if "rid" in fields else {}), **({"token": token} if "token" in fields else {})}
    )
