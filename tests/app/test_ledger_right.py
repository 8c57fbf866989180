"""Exactly one right allows the export of a ledger: the client's calls and the table of rights agree."""

from __future__ import annotations

import pytest

import penstock
from penstock.client.cases import AsyncCases
from penstock.core.access.resources import parse_grant
from penstock.core.cases.ledger import Ledger
from penstock.model.callers import Caller, calling
from penstock.model.errors import PermissionDeniedError
from penstock.model.identity import Action, Identity
from penstock.net.access.guarded import GuardedControl
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with penstock.open(tmp_path_factory.mktemp("ledger") / "data") as opened:
        stream = opened.create_stream("s/t", create_scope=True)
        with stream.writer() as writer:
            writer.write(b"of ann@x", key="k")
        opened.cases().open("s", ["ann@x"], case="c", who="ann", why="request")
        opened.cases().wait("c")
        opened.holds("s").add(owner="o", reason="r", hold_id="seen")
        yield opened


def export(store: penstock.Store, *rights: str) -> Ledger:
    inner = store._inner
    guarded = GuardedControl(inner.controller, lambda _: None)
    identity = Identity(name="ann", proof="password", grants=tuple(map(parse_grant, rights)))

    async def made() -> Ledger:
        with calling(Caller(identity=identity)):
            return await AsyncCases(inner.segments, guarded, RealClock(), RealRng()).ledger(with_values=True)

    return store._thread.call(made())


def test_the_right_to_erase_on_the_store_is_enough(store):
    own = store.cases().ledger(with_values=True)
    found = export(store, "/=erase")
    assert (found.holds, found.cases, len(found.erasures)) == (own.holds, own.cases, 1)
    assert found.holds == ["seen"]


OTHERS = [item for item in Action if item != Action.ERASE]


@pytest.mark.parametrize("right", [*("/=" + item for item in OTHERS), "/=" + ",".join(OTHERS), "/scope:s=*"])
def test_no_other_right_is(store, right):
    with pytest.raises(PermissionDeniedError):
        export(store, right)
