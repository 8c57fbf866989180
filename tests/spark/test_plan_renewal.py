"""How a process of tasks renews the token of its plan."""

from __future__ import annotations

import asyncio

import jwt
import pytest

from penstock.core.access.plans import PLAN_TARGETS_MAX
from penstock.model.names import StreamName
from penstock.spark.worker import plan_access
from penstock.spark.worker.plan_access import PlanConnector, token_groups
from penstock.testing.fakes import FakeClock

LIFE_S = 600


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    found = FakeClock()
    monkeypatch.setattr(plan_access, "RealClock", lambda: found)
    monkeypatch.setattr(plan_access, "_newest", type(plan_access._newest)())
    return found


def token(clock: FakeClock, *grants: str) -> str:
    now_s = clock.now_ms() // 1000
    claims = {"sub": "ann", "aud": "plans", "prf": "password", "iat": now_s, "exp": now_s + LIFE_S}
    return jwt.encode({**claims, "grants": list(grants)}, "of no use" * 8, algorithm="HS256")


def test_a_token_that_is_renewed_with_fewer_rights_serves_its_plan(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewals = 0

    async def renewed(_self: PlanConnector, _address: str, _token: str, _valid_s: int) -> str:
        # The user has lost the right to one stream since the plan.
        nonlocal renewals
        renewals += 1
        return token(clock, "/scope:s/stream:a=read")

    monkeypatch.setattr(PlanConnector, "renewed", renewed)
    connector = PlanConnector(token(clock, "/scope:s/stream:a=read", "/scope:s/stream:b=read"), False)
    supply = plan_access._TokenSource(connector._key, connector._token, connector, "local")
    clock.jump(LIFE_S * 600)
    first = asyncio.run(supply())
    assert asyncio.run(supply()) == first
    assert renewals == 1
    clock.jump(LIFE_S * 600)  # The token of the plan has expired.
    assert asyncio.run(supply()) != connector._token
    assert renewals == 2


def test_each_group_of_streams_fits_into_one_token() -> None:
    groups = token_groups([StreamName("s", f"{number:x}") for number in range(4096)])
    assert max(map(len, groups)) <= PLAN_TARGETS_MAX
