"""Plan tokens at the doors of a server: issued, verified, expired, renewed, and never taken for another token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from access_world import HASH, ORDERS

from penstock.app.access.security import open_security
from penstock.app.access.settings import AccessSettings
from penstock.app.telemetry import Counters
from penstock.core.access.plans import PLAN_TARGETS_MAX
from penstock.core.access.resources import grant_text, parse_grant
from penstock.model.callers import Caller, calling
from penstock.model.errors import InvalidArgumentError, PermissionDeniedError, UnauthenticatedError
from penstock.model.identity import Identity
from penstock.model.names import StreamName
from penstock.net.access.doors import TokenDesk
from penstock.ports.access.authenticator import Presented
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.testing.fakes import FakeClock

OTHER = StreamName("shop", "other")
MINUTE_MS = 60_000


class Desk:
    """The desk of a store whose user ann may do everything with its streams."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.clock = FakeClock()
        self.allow("/scope:shop=read,write")
        self.security = open_security(AccessSettings(), data, None, clock=self.clock, telemetry=Counters())
        self.desk = TokenDesk(self.security.issuer)
        self.ann = Identity(name="ann", proof="password", grants=(parse_grant("/scope:shop=read,write"),))

    def allow(self, *grants: str) -> None:
        def change(users: dict[str, User]) -> None:
            users["ann"] = User(name="ann", password=HASH, grants=tuple(map(parse_grant, grants)))

        change_users(users_path(self.data), change)

    def plan(self, identity: Identity | None = None, action: str = "read", valid_s: int = 600) -> str:
        with calling(Caller(identity=identity or self.ann)):
            return self.desk.plan([ORDERS], action, valid_s)

    def identity(self, token: str) -> Identity:
        assert self.security.authenticator is not None
        return asyncio.run(self.security.authenticator.identify(Presented(authorization=f"Bearer {token}")))

    def segments(self, identity: Identity, stream: StreamName) -> str:
        with calling(Caller(identity=identity)):
            return self.desk.token(stream)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_plan_token_proves_the_user_with_the_rights_of_the_plan_only(desk: Desk) -> None:
    found = desk.identity(desk.plan())
    assert (found.name, found.proof) == ("ann", "plan")
    assert [grant_text(one) for one in found.grants] == ["/scope:shop/stream:orders=read"]
    with pytest.raises(PermissionDeniedError):
        desk.segments(found, OTHER)


def test_an_expired_token_is_refused_everywhere(desk: Desk) -> None:
    token = desk.plan(valid_s=600)
    tasks = desk.identity(token)
    segments = desk.segments(tasks, ORDERS)
    assert desk.security.verifier is not None
    desk.clock.jump(599_000)
    desk.security.verifier.verify(segments)
    desk.clock.jump(2_000)
    with pytest.raises(UnauthenticatedError) as refused:
        desk.identity(token)
    assert refused.value.fields["expired"] is True
    with pytest.raises(UnauthenticatedError):
        desk.security.verifier.verify(segments)


def test_a_token_for_segments_never_outlives_the_plan(desk: Desk) -> None:
    tasks = desk.identity(desk.plan(valid_s=60))
    assert desk.security.verifier is not None
    found = desk.security.verifier.verify(desk.segments(tasks, ORDERS))
    assert found.expires_ms <= desk.clock.now_ms() + MINUTE_MS
    assert [one.value for one in found.actions] == ["read"]
    # The user's own token is cached, and must not be the short one.
    own = desk.security.verifier.verify(desk.segments(desk.ann, ORDERS))
    assert own.expires_ms > desk.clock.now_ms() + MINUTE_MS


def test_only_a_token_that_is_valid_still_is_renewed_with_the_same_rights(desk: Desk) -> None:
    tasks = desk.identity(desk.plan(valid_s=600))
    desk.clock.jump(300_000)
    with calling(Caller(identity=tasks)):
        renewed = desk.desk.renew(600)
    desk.clock.jump(400_000)
    found = desk.identity(renewed)
    assert (found.grants, found.name) == (tasks.grants, "ann")
    with calling(Caller(identity=desk.ann)), pytest.raises(InvalidArgumentError):
        desk.desk.renew(600)


def test_a_plan_token_gets_no_wider_one(desk: Desk) -> None:
    tasks = desk.identity(desk.plan())
    with calling(Caller(identity=tasks)):
        with pytest.raises(PermissionDeniedError):
            desk.desk.plan([ORDERS], "write", 600)
        with pytest.raises(PermissionDeniedError):
            desk.desk.plan([OTHER], "read", 600)
        again = desk.desk.plan(["shop"], "read", 600)
    assert desk.identity(again).grants == tasks.grants


def test_a_plan_of_more_streams_than_a_token_holds_is_refused_before_it_is_examined(desk: Desk) -> None:
    class Streams(list[StreamName]):
        def __iter__(self) -> Iterator[StreamName]:
            raise AssertionError("the controller looks at each of them")

    targets = Streams(StreamName("shop", f"s{number}") for number in range(PLAN_TARGETS_MAX + 1))
    with calling(Caller(identity=desk.ann)), pytest.raises(InvalidArgumentError, match="too many"):
        desk.desk.plan(targets, "read", 600)


def test_a_revoked_right_ends_for_plans_that_have_it(desk: Desk) -> None:
    token = desk.plan(action="write")
    assert desk.identity(token).grants
    desk.allow("/scope:shop=read")
    assert desk.identity(token).grants == ()


def test_no_kind_of_token_serves_as_another(desk: Desk) -> None:
    token = desk.plan()
    tasks = desk.identity(token)
    assert desk.security.verifier is not None
    with pytest.raises(UnauthenticatedError):
        desk.security.verifier.verify(token)
    with pytest.raises(UnauthenticatedError):
        desk.identity(desk.segments(tasks, ORDERS))
    head, body, signature = token.split(".")
    plain = desk.plan().split(".")
    for forged in (f"{head}.{body}.{signature[:-4]}AAAA", f"{plain[0][:-2]}.{body}.{signature}"):
        with pytest.raises(UnauthenticatedError):
            desk.identity(forged)


def test_a_server_without_identities_issues_none() -> None:
    assert TokenDesk(None).plan([ORDERS], "read", 600) == ""
    assert TokenDesk(None).renew(600) == ""
