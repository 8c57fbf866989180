"""The guard: every call of every subject passes the table, listings are filtered, and no refusal shows what exists."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest

from penstock.app.telemetry import Counters
from penstock.codec.values import Call
from penstock.controller.controller import Controller
from penstock.controller.settings import ControllerSettings
from penstock.core.access.calls import CALLS
from penstock.core.access.resources import parse_grant
from penstock.model.callers import Caller, calling
from penstock.model.errors import (
    AccessError,
    ConflictError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
    StreamNotFoundError,
    UnauthenticatedError,
)
from penstock.model.identity import Action, Identity
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType, StreamConfig
from penstock.net.access.guarded import GuardedControl, by_the_store, check_may, guarded_segments
from penstock.net.access.refusals import Refusals
from penstock.net.native.calls import control_calls, segment_calls
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from penstock.testing.world import World

sys.path.insert(0, str(Path(__file__).parents[1]))
from drawn_values import value_of

ORDERS, SECRETS = StreamName("shop", "orders"), StreamName("shop", "secrets")
TO_ALL = "/=" + ",".join(Action)


def ran(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))  # type: ignore[arg-type]

    return run


def as_caller(*grants: str) -> Any:
    identity = Identity(name="ann", proof="password", grants=tuple(map(parse_grant, grants)))
    return calling(Caller(via="grpc", identity=identity))


def every_call() -> dict[str, Call]:
    control = {call.name: call for calls in control_calls().values() for call in calls.values()}
    return control | {call.name: call for call in segment_calls().values()}


class Recording:
    """A service that has every call of every subject, and notes those that reach it."""

    def __init__(self, reached: list[str], subject: str = "") -> None:
        self._reached, self._subject = reached, subject

    def __getattr__(self, name: str) -> Any:
        if not self._subject and name in control_calls():
            return Recording(self._reached, name)

        async def call(*_: Any, **__: Any) -> Any:
            self._reached.append(f"{self._subject or 'segments'}.{name}")
            found = SimpleNamespace(retention=None, target="shop/orders", targets=("shop",), stream="shop/orders")
            return found if name in ("config", "get") else []

        return call


def drawn(call: Call, rng: random.Random) -> dict[str, Any]:
    """Arguments of the call that it can be bound with."""
    hints = get_type_hints(call.declared)
    names = [name for name in inspect.signature(call.declared).parameters if name != "self"]
    while True:
        try:
            return {name: value_of(rng, hints[name]) for name in names}
        except (PenstockError, ValueError):
            continue


async def outcome(call: Callable[[], Awaitable[Any]]) -> str:
    try:
        await call()
    except AccessError as error:
        return type(error).__name__
    return "made"


@pytest.mark.parametrize("name", sorted(every_call()))
@ran
async def test_every_call_is_refused_without_an_identity_or_rights_and_made_with_all(name: str) -> None:
    call, reached, refused = every_call()[name], [], []
    plane = Recording(reached)
    guarded = GuardedControl(plane, refused.append)  # type: ignore[arg-type]
    segments = guarded_segments(plane, guarded.rights)  # type: ignore[arg-type]
    subject, _, method = name.partition(".")
    given = drawn(call, random.Random(7))

    def make() -> Awaitable[Any]:
        made = getattr(segments if subject == "segments" else getattr(guarded, subject), method)
        return made(**given)

    assert await outcome(make) == "UnauthenticatedError"
    with calling(Caller(who="root", via="grpc")):
        assert await outcome(make) == "UnauthenticatedError"
    with as_caller():
        # Nothing is needed where nothing is named.
        empty = not CALLS[name].found_by and not CALLS[name].needs(given)
        assert await outcome(make) == ("made" if empty else "PermissionDeniedError")
    # The guard itself looks up an erasure or a case, to find its streams.
    assert empty or name not in reached or name in ("erasures.get", "cases.get", "approvals.get")
    with as_caller(TO_ALL):
        assert await outcome(make) == "made"
    assert name in reached
    assert len(refused) == (2 if empty else 3)


@ran
async def test_a_call_that_the_table_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CALLS, "scopes.create")  # type: ignore[arg-type]
    reached: list[str] = []
    guarded = GuardedControl(Recording(reached), lambda _: None)  # type: ignore[arg-type]
    with as_caller(TO_ALL), pytest.raises(PermissionDeniedError):
        await guarded.scopes.create("shop")
    assert not reached


@ran
async def test_a_refusal_has_a_bounded_text_whatever_name_was_sent(caplog: pytest.LogCaptureFixture) -> None:
    telemetry = Counters()
    guarded = GuardedControl(Recording([]), Refusals(telemetry, lambda: 0.0))  # type: ignore[arg-type]
    with as_caller("/scope:shop=read"):
        for number in range(50):
            with pytest.raises(PermissionDeniedError) as caught:
                await guarded.scopes.create(f"{number}" + "x" * 100_000)
            assert len(str(caught.value)) < 1000
        with pytest.raises(PermissionDeniedError):
            await guarded.scopes.delete("other")
    # Names that the caller invents neither fill the log nor the memory.
    assert [record.call for record in caplog.records] == ["scopes.create", "scopes.delete"]


async def with_store(test: Callable[[Controller, GuardedControl], Awaitable[None]]) -> None:
    world = World(clock=RealClock(), rng=RealRng(), controller=ControllerSettings())
    async with world.serving() as (_, controller):
        await controller.scopes.create("shop")
        for stream in (ORDERS, SECRETS):
            await controller.streams.create(stream, StreamConfig())
        await test(controller, GuardedControl(controller, lambda _: None))


@ran
async def test_a_refusal_is_the_same_whether_the_object_exists_or_not() -> None:
    async def run(controller: Controller, guarded: GuardedControl) -> None:
        await controller.holds.add(SECRETS, owner="o", reason="r", hold_id="there")

        async def refusal(call: Awaitable[Any]) -> tuple[object, ...]:
            with pytest.raises(PermissionDeniedError) as caught:
                await call
            text = str(caught.value).replace("missing", "secrets").replace("nowhere", "there")
            return type(caught.value), text

        with as_caller("/scope:shop/stream:orders=read,write,hold,admin"):
            missing = StreamName("shop", "missing")
            for call in (guarded.streams.config, guarded.streams.exists, guarded.cuts.tail, guarded.layout.current):
                assert await refusal(call(SECRETS)) == await refusal(call(missing))
            there, nowhere = (guarded.holds.release(one, owner="x") for one in ("there", "nowhere"))
            assert await refusal(there) == await refusal(nowhere)
            assert await refusal(guarded.erasures.get("x")) == await refusal(guarded.erasures.get("y"))
        with as_caller("/scope:shop=read"), pytest.raises(StreamNotFoundError):
            await guarded.streams.config(StreamName("shop", "missing"))
        with as_caller("/scope:shop=hold"):
            await guarded.holds.release("there", owner="x")
        with as_caller("/=hold"), pytest.raises(NotFoundError):
            await guarded.holds.release("there", owner="x")

    await with_store(run)


@ran
async def test_listings_pass_over_pages_of_which_nothing_may_be_seen() -> None:
    async def run(controller: Controller, guarded: GuardedControl) -> None:
        for number in range(5):
            await controller.scopes.create(f"a{number}")
        with as_caller("/scope:shop/stream:orders=read"):
            assert await guarded.scopes.list(limit=2) == ["shop"]
            assert await guarded.scopes.list(after="shop", limit=2) == []
            assert [name for name in await guarded.streams.list("shop") if name[0] != "_"] == ["orders"]
            # The store's own scope shows nothing of what it holds.
            assert await guarded.streams.list("_system") == []
        with as_caller("/scope:shop=admin"):
            assert await guarded.streams.list("shop") == await controller.streams.list("shop")

    await with_store(run)


@ran
async def test_a_configuration_changes_retention_only_with_the_right_to_it() -> None:
    async def run(_: Controller, guarded: GuardedControl) -> None:
        keeps = StreamConfig(retention=RetentionPolicy(type=RetentionType.TIME, minimum=1000))
        with as_caller("/scope:shop=admin"):
            await guarded.streams.update(ORDERS, StreamConfig(tags=("fast",)))
            with pytest.raises(PermissionDeniedError, match="retain"):
                await guarded.streams.update(ORDERS, keeps)
        with as_caller("/scope:shop=retain"), pytest.raises(PermissionDeniedError, match="admin"):
            await guarded.streams.update(ORDERS, keeps)
        with as_caller("/scope:shop=retain,admin"):
            await guarded.streams.update(ORDERS, keeps)

    await with_store(run)


@ran
async def test_retention_that_changes_between_the_check_and_the_update_is_kept() -> None:
    async def run(controller: Controller, guarded: GuardedControl) -> None:
        keeps = RetentionPolicy(type=RetentionType.TIME, minimum=1000)
        config_now = controller.streams.config

        async def config(stream: StreamName) -> StreamConfig:
            found = await config_now(stream)
            await controller.streams.update(stream, replace(found, retention=keeps))
            return found

        controller.streams.config = config  # type: ignore[method-assign]
        with as_caller("/scope:shop=admin"), pytest.raises(ConflictError, match="has changed"):
            await guarded.streams.update(ORDERS, StreamConfig(tags=("fast",)))
        assert (await config_now(ORDERS)).retention == keeps

    await with_store(run)


@ran
async def test_work_of_the_store_passes_no_guard_and_a_check_ahead_changes_nothing() -> None:
    async def run(controller: Controller, guarded: GuardedControl) -> None:
        assert by_the_store(guarded) is controller
        assert by_the_store(controller) is controller
        check_may(controller, "scopes.delete", scope="shop")
        with pytest.raises(UnauthenticatedError):
            check_may(guarded, "scopes.delete", scope="shop")
        with as_caller("/scope:shop/stream:orders=admin"), pytest.raises(PermissionDeniedError):
            check_may(guarded, "scopes.delete", scope="shop")

    await with_store(run)


@ran
async def test_a_call_keeps_the_identity_that_it_began_with() -> None:
    reached: list[str] = []
    guarded = GuardedControl(Recording(reached), lambda _: None)  # type: ignore[arg-type]

    async def one(right: str) -> str:
        with as_caller(right):
            await asyncio.sleep(0)
            return await outcome(lambda: guarded.streams.seal(ORDERS))

    assert await asyncio.gather(one("/=read"), one("/=admin"), one("/=read")) == [
        "PermissionDeniedError",
        "made",
        "PermissionDeniedError",
    ]
