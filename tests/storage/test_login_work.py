"""Failed logins do not show which users exist: they take the same work, get the same answer, and must wait as long."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Sequence
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
from penstock.storage.access.passwords import PasswordHash, hash_password, import_pravega
from penstock.storage.access.plan_tokens import PlanTokens
from penstock.storage.access.store_key import load_key
from penstock.storage.access.token_list import RevokedTokens, tokens_path
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.testing.fakes import FakeClock

READ = parse_grant("/scope:shop=read")
PASSWORD = "correct horse"
ROUNDS = (1, 4_999, 5_000, 20_000)
"""Of users that are imported: Pravega's own number, and others that its tool was given."""


def imported(rounds: int) -> PasswordHash:
    salt = b"salt of many bytes"
    derived = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), salt, rounds, 64).hex()
    return import_pravega(f"{rounds}:{salt.hex()}:{derived}".encode().hex())


NAMES = ("own", *(f"imported-{rounds}" for rounds in ROUNDS), "certificate", "unknown", "")
"""Users with a password of ours, with ones of Pravega's, and with none; a name that no user has; and no name."""


class Quiet(Counters):
    """Time stands still."""

    def steady_s(self) -> float:
        return 1000.0


def desk(path: Path, kinds: Sequence[int] = ROUNDS) -> StoreAuthenticator:
    def add(users: dict[str, User]) -> None:
        users["own"] = User(name="own", password=hash_password(PASSWORD), grants=(READ,))
        for rounds in kinds:
            name = f"imported-{rounds}"
            users[name] = User(name=name, password=imported(rounds), grants=(READ,))
        users["certificate"] = User(name="certificate", certificates=("job.shop",), grants=(READ,))

    change_users(users_path(path), add)
    clock = FakeClock()
    return StoreAuthenticator(
        users=users_path(path),
        tokens=StoreTokens(load_key(path), clock),
        revoked=RevokedTokens(tokens_path(path)),
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


@pytest.mark.parametrize("kinds", [(), (1,), (5_000,), ROUNDS], ids=str)
def test_logins_take_the_same_work_and_failed_ones_get_the_same_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: Sequence[int]
) -> None:
    rounds_done: list[int] = []
    hashed: list[Any] = []
    derive = hashlib.pbkdf2_hmac

    class Recorded(PasswordHasher):
        def verify(self, hash: str | bytes, password: str | bytes) -> Any:  # noqa: A002 (argon2's own name)
            hashed.append(extract_parameters(str(hash)))
            return super().verify(hash, password)

    def recorded(name: str, password: bytes, salt: bytes, rounds: int, size: int) -> bytes:
        assert (name, size) == ("sha256", 64)
        rounds_done.append(rounds)
        return derive(name, password, salt, rounds, size)

    opened = desk(tmp_path, kinds)
    passwords.matches(None, PASSWORD)  # makes the hash that stands for unknown users
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", recorded)
    monkeypatch.setattr(passwords, "_hasher", lambda: Recorded(time_cost=2, memory_cost=19 << 10, parallelism=1))
    work, outcomes = set[str](), set[str]()

    def done() -> str:
        found = repr((sum(rounds_done), hashed))
        rounds_done.clear()
        hashed.clear()
        return found

    for name in NAMES:
        outcomes.add(repr(asyncio.run(answer(opened, name, "wrong horse"))))
        work.add(done())
    for name in ("own", *(f"imported-{rounds}" for rounds in kinds)):
        shown = "Basic " + base64.b64encode(f"{name}:{PASSWORD}".encode()).decode()
        found = asyncio.run(opened.identify(Presented(authorization=shown, certificate=(), peer="10.0.0.1")))
        assert found.name == name
        work.add(done())
    assert len(work) == 1, work
    assert len(outcomes) == 1, outcomes
    assert f"({max(kinds, default=5_000)}, [" in work.pop(), "as much as the slowest stored hash"


def test_unknown_user_names_must_wait_like_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.access.authenticator.matches", lambda *_: False)
    outcomes = []
    for name in NAMES:
        opened = desk(tmp_path / (name or "none"), (5_000,))
        outcomes.append([asyncio.run(answer(opened, name, f"guess {number}")) for number in range(15)])
    assert all(one == outcomes[0] for one in outcomes)
    assert len(set(outcomes[0])) == 2, "at first they are refused, then they must wait"
