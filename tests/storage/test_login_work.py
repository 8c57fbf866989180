"""Failed logins do not show which users exist: they take the same work, get the same answer, and must wait as long."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher, extract_parameters

from penstock.app.telemetry import Counters
from penstock.core.access.resources import parse_grant
from penstock.model.errors import PenstockError
from penstock.ports.access.authenticator import Presented
from penstock.storage.access import passwords
from penstock.storage.access.authenticator import StoreAuthenticator
from penstock.storage.access.bearer import StoreTokens
from penstock.storage.access.passwords import hash_password, import_pravega
from penstock.storage.access.plan_tokens import PlanTokens
from penstock.storage.access.store_key import load_key
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.testing.fakes import FakeClock

READ = parse_grant("/scope:shop=read")
PASSWORD = "correct horse"
IMPORTED = (
    "5000:"
    + b"salt of many bytes".hex()
    + ":"
    + hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), b"salt of many bytes", 5000, 64).hex()
)
NAMES = ("own", "imported", "certificate", "unknown", "")
"""Users with a password of ours, one of Pravega's, and none; a name that no user has; and no name."""


class Quiet(Counters):
    """Time stands still."""

    def steady_s(self) -> float:
        return 1000.0


def desk(path: Path) -> StoreAuthenticator:
    def add(users: dict[str, User]) -> None:
        users["own"] = User(name="own", password=hash_password(PASSWORD), grants=(READ,))
        users["imported"] = User(name="imported", password=import_pravega(IMPORTED.encode().hex()), grants=(READ,))
        users["certificate"] = User(name="certificate", certificates=("job.shop",), grants=(READ,))

    change_users(users_path(path), add)
    clock = FakeClock()
    return StoreAuthenticator(
        users=users_path(path),
        tokens=StoreTokens(load_key(path), clock),
        plans=PlanTokens(load_key(path), clock),
        provider=None,
        clock=clock,
        telemetry=Quiet(),
    )


async def answer(desk: StoreAuthenticator, name: str, password: str) -> tuple[type[Exception], str]:
    shown = "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
    with pytest.raises(PenstockError) as caught:
        await desk.identify(Presented(authorization=shown, certificate=(), peer="10.0.0.1"))
    return caught.type, str(caught.value)


def test_failed_logins_take_the_same_work_and_get_the_same_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work: list[Any] = []
    derive = hashlib.pbkdf2_hmac

    class Recorded(PasswordHasher):
        def verify(self, hash: str | bytes, password: str | bytes) -> Any:  # noqa: A002 (argon2's own name)
            work.append(extract_parameters(str(hash)))
            return super().verify(hash, password)

    def recorded(name: str, password: bytes, salt: bytes, rounds: int, size: int) -> bytes:
        work.append((name, rounds, size))
        return derive(name, password, salt, rounds, size)

    opened = desk(tmp_path)
    passwords.matches(None, PASSWORD)  # makes the hash that stands for unknown users
    monkeypatch.setattr(passwords.hashlib, "pbkdf2_hmac", recorded)
    monkeypatch.setattr(passwords, "_hasher", lambda: Recorded(time_cost=2, memory_cost=19 << 10, parallelism=1))
    found: Mapping[str, Any] = {}
    for name in NAMES:
        work.clear()
        outcome = asyncio.run(answer(opened, name, "wrong horse"))
        assert len(work) == 2
        found = {**found, name: (outcome, tuple(work))}
    assert len(set(map(repr, found.values()))) == 1, found


def test_unknown_user_names_must_wait_like_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.access.authenticator.matches", lambda *_: False)
    outcomes = []
    for name in NAMES:
        opened = desk(tmp_path / (name or "none"))
        outcomes.append([asyncio.run(answer(opened, name, f"guess {number}")) for number in range(15)])
    assert all(one == outcomes[0] for one in outcomes)
    assert len(set(outcomes[0])) == 2, "at first they are refused, then they must wait"
