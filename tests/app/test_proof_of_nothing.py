"""No call proves anything about what does not exist: a mistyped name, a deleted stream, an empty scope, a search that can
find nothing. The calls come from the ports and the client, so a new call needs an entry here."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import penstock
from penstock.app.erasure.subjects import export_subject
from penstock.client.audit import AsyncAuditLog
from penstock.client.cases import AsyncCases
from penstock.client.erasure import AsyncErasures
from penstock.client.retention import AsyncHolds
from penstock.core.cases.matching import Contains, JsonField, KeyedField
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
)
from penstock.model.names import StreamName
from penstock.net.native.calls import control_calls
from penstock.spark.jobs.erase import erase as spark_erase
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

REFUSED = (CorruptDataError, NotFoundError, ScopeNotFoundError, StreamNotFoundError, InvalidArgumentError)
TYPO, GONE, RIGHT = StreamName("s", "tyop"), StreamName("s", "gone"), StreamName("s", "t")
BY = {"by": "json field", "field": "user.id"}
SUBJECTS: Sequence[Mapping[str, Any]] = [
    {**BY, "values": []}, {**BY, "values": [""]}, {**BY, "values": ["\0"]}, {**BY, "digests": []}, {**BY, "digests": ["ab"]},
    {**BY, "field": "", "values": ["x"]}, {**BY, "field": "user..id", "values": ["x"]}, {"by": "payload contains"}, {},
    {"by": "payload contains", "values": ["", "x"]}, {"by": "payload", "values": ["x"]},
]  # fmt: skip
TARGETS: Sequence[Sequence[str]] = [
    ["s/tyop"],
    ["s/gone"],
    ["tyop"],
    ["empty"],
    ["s/t", "tyop"],
    ["S"],
    [""],
    ["s/"],
    [],
]
WRONG: Mapping[str, Sequence[Any]] = {
    "stream": [TYPO, GONE, StreamName("tyop", "t")],
    "target": [TYPO, GONE, "tyop"],
    "targets": TARGETS,
    "subject": SUBJECTS,
    "erasure": ["nope"],
    "case": ["nope"],
    "hold_id": ["nope"],
    "before": [0, 10**9],
    "from_ms": [10**16],
    "checkpoint": ["nope"],
    "since": [10**16],
    "values": [[], [""]],
    "json_field": ["", "user..id"],
    "positions": [{}, {0: []}],
}
"""By parameter: what must never be accepted."""
GIVEN: Mapping[str, Any] = {
    "stream": RIGHT, "target": RIGHT, "targets": ["s/t"], "subject": {**BY, "values": ["x"]}, "who": "w", "why": "y",
    "owner": "o", "reason": "r", "positions": {0: [0]}, "rows": 0, "table": "delta x", "part": 0, "values": ["x"], "case": "new",
    "asked": {"erasure": "e", "who": "w", "why": "y", "looked_for": {}}, "exported_ms": 1, "with_values": False,
    "sha256": "", "hold_id": "new", "erasure": "nope", "until_ms": 10**13, "until": 10**13, "checkpoint": "nope", "before": 0,
}  # fmt: skip
OPENS = {"cases.open": ["case"], "holds.add": ["hold_id"], "AsyncCases.open": ["case"], "AsyncHolds.add": ["hold_id"]}
"""Calls that make what a parameter names."""
TRUE = {("evidence.disposal", GONE): '"removals":1', ("AsyncAuditLog.disposal", GONE): '"removals":1'}
"""A deleted stream whose deletion is in the log: the certificate has it."""
COUNTS = {("erasures.preview", "positions"): "counts and signs nothing; a search may have found no position"}
NAMES_NOTHING = {
    "erasures.list", "holds.list", "cases.list", "cases.key",
    "evidence.log", "evidence.rotate_key", "evidence.checkpoint", "evidence.checkpoints", "evidence.export",
    "AsyncErasures.list", "AsyncCases.list", "AsyncHolds.list",
    "AsyncAuditLog.log", "AsyncAuditLog.rotate_key", "AsyncAuditLog.checkpoint", "AsyncAuditLog.checkpoints",
}  # fmt: skip
"""Calls about the whole store, and of objects that were made for a target."""
OTHERWISE = {
    "evidence.ledger": "the store compares the digest with that of its own ledger: test_erasure_ledger",
    "AsyncCases.ledger": "of the whole store",
    "AsyncAuditLog.export": "of the whole store",
    "AsyncHolds.add": "its target is that of the object; holds.add checks it",
}


def calls() -> dict[str, Any]:
    """By name, the declared function of each call."""
    found = {}
    for subject in ("erasures", "cases", "evidence", "holds"):
        found |= {f"{subject}.{name}": call.declared for name, call in control_calls()[subject].items()}
    for kind in (AsyncErasures, AsyncCases, AsyncAuditLog, AsyncHolds):
        own = inspect.getmembers(
            kind, lambda item: inspect.iscoroutinefunction(item) or inspect.isasyncgenfunction(item)
        )
        found |= {f"{kind.__name__}.{name}": call for name, call in own if not name.startswith("_")}
    return found


CALLS = calls()


def wrong_of(name: str) -> list[tuple[str, Any]]:
    parameters = inspect.signature(CALLS[name]).parameters
    return [
        (parameter, value)
        for parameter in parameters
        if parameter not in OPENS.get(name, ()) and (name, parameter) not in COUNTS
        for value in WRONG.get(parameter, ())
    ]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with penstock.open(tmp_path_factory.mktemp("nothing") / "data", deletion_grace_ms=0) as opened:
        stream = opened.create_stream("s/t", create_scope=True)
        with stream.writer() as writer:
            writer.write(b'{"user":{"id":"u"}}', key="k")
        opened.create_stream("s/gone")
        opened.stream("s/gone").delete(seal=True)
        opened.create_scope("empty")
        yield opened


def made_by(store: penstock.Store, name: str, target: Any = None) -> Any:
    """The bound call."""
    inner = store._inner
    services = (inner.segments, inner.controller)
    kind, _, call = name.partition(".")
    objects = {
        "AsyncErasures": lambda: AsyncErasures(target, *services, RealRng()),
        "AsyncCases": lambda: AsyncCases(*services, RealClock(), RealRng()),
        "AsyncAuditLog": lambda: AsyncAuditLog(*services),
        "AsyncHolds": lambda: AsyncHolds(target, inner.controller, RealRng()),
    }
    return getattr(objects[kind]() if kind in objects else getattr(inner.controller, kind), call)


def answer(store: penstock.Store, call: Any, given: Mapping[str, Any]) -> Any:
    async def asked() -> Any:
        return await call(**given)

    return store._thread.call(asked())


@pytest.mark.parametrize("name", CALLS)
def test_each_call_refuses_what_does_not_exist(store, name):
    wrong = wrong_of(name)
    assert bool(wrong) + (name in NAMES_NOTHING and not wrong) + (name in OTHERWISE) >= 1, "this call needs an entry"
    parameters = inspect.signature(CALLS[name]).parameters
    for parameter, value in wrong:
        given = {
            other: GIVEN[other]
            for other, item in parameters.items()
            if other != "self" and (item.default is inspect.Parameter.empty or other in OPENS.get(name, ()))
        }
        try:
            found = answer(store, made_by(store, name), {**given, parameter: value})
        except REFUSED:
            continue
        expected = TRUE.get((name, value)) if isinstance(value, StreamName) else None
        assert expected is not None, f"{name} accepts {parameter}={value!r}: {found!r}"
        assert expected in found.text


@pytest.mark.parametrize("name", ["AsyncErasures.list", "AsyncHolds.list"])
@pytest.mark.parametrize("target", [TYPO, GONE])
def test_a_list_about_no_stream_is_no_empty_list(store, name, target):
    with pytest.raises(StreamNotFoundError):
        answer(store, made_by(store, name, target), {})


MATCHERS = [
    Contains(values=frozenset()), Contains(values=frozenset({"", "x"})), JsonField(path="u", values=frozenset()),
    JsonField(path="u", values=frozenset({"\0"})), JsonField(path="", values=frozenset({"x"})),
    JsonField(path="u..id", values=frozenset({"x"})), KeyedField(path="u", digests=frozenset(), key=b"k"),
]  # fmt: skip


@pytest.mark.parametrize("targets", TARGETS)
def test_an_export_of_no_stream_is_refused(store, targets):
    with pytest.raises(REFUSED):
        answer(
            store,
            export_subject,
            {
                "store": store._inner,
                "targets": targets,
                "match": Contains(values=frozenset({"x"})),
                "write": lambda _: None,
            },
        )


@pytest.mark.parametrize("match", MATCHERS, ids=str)
def test_a_search_that_can_find_nothing_is_refused(store, match):
    with pytest.raises(InvalidArgumentError):
        answer(
            store, export_subject, {"store": store._inner, "targets": ["s"], "match": match, "write": lambda _: None}
        )
    with pytest.raises(InvalidArgumentError):
        spark_erase(None, "s/t", match, controller="127.0.0.1:1", who="w", why="y")


def test_a_case_about_no_stream_of_the_store_is_refused(tmp_path):
    with penstock.open(tmp_path / "data") as store, pytest.raises(StreamNotFoundError, match="no stream"):
        store.cases().open("*", ["x"], who="w", why="y")


def test_no_positions_are_refused_unless_a_search_found_none(store):
    stream = store.stream("s/t")
    for looked_for in (None, {}, {"by": "positions"}, {"by": ""}, {"for": "x"}):
        with pytest.raises(InvalidArgumentError):
            stream.erase([], who="w", why="y", looked_for=looked_for)
    with pytest.raises(InvalidArgumentError):
        stream.erase([], who="w", why="y", dry_run=True)
    assert store.erasures().list() == []
    receipt = stream.erase([], who="w", why="y", looked_for={"by": "json field", "field": "user.id"})
    assert receipt["where"]["events"] == 0
    assert receipt["looked_for"]["field"] == "user.id"
