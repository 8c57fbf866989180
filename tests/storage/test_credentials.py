"""Credentials: passwords, tokens and certificates that are right pass, and everything else is refused."""

from __future__ import annotations

import asyncio
import base64
import errno
import functools
import hashlib
import hmac
import http.client
import http.server
import json
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from penstock.app.telemetry import Counters
from penstock.core.access.attempts import Attempts
from penstock.core.access.resources import parse_grant
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    ThrottledError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.model.identity import Action, Identity
from penstock.model.names import StreamName
from penstock.ports.access.authenticator import Presented
from penstock.storage.access import authenticator as module
from penstock.storage.access.authenticator import StoreAuthenticator
from penstock.storage.access.bearer import JwtSettings, ProviderTokens, StoreTokens
from penstock.storage.access.delegation import Issuer, Verifier
from penstock.storage.access.key_sets import KeySet, key_set, parse_keys
from penstock.storage.access.passwords import check_password, hash_password, import_pravega, matches
from penstock.storage.access.plan_tokens import PlanTokens
from penstock.storage.access.store_key import key_path, load_key
from penstock.storage.access.token_list import RevokedTokens, tokens_path
from penstock.storage.access.users_file import User, certificate_name, change_users, load_users, users_path, with_grants

PASSWORD = "correct horse"
HASH = hash_password(PASSWORD)
READ = parse_grant("/scope:shop=read")


@dataclass
class Hands:
    """A wall clock that tests move."""

    ms: int = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.ms


@dataclass
class Seconds(Counters):
    at_s: float = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.at_s = 0.0

    def steady_s(self) -> float:
        return self.at_s


def ran(test):
    @functools.wraps(test)
    def run(*arguments, **named):
        asyncio.run(test(*arguments, **named))

    return run


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@dataclass
class Desk:
    """An authenticator with one user, ``ann``, and the provider of ``keys``."""

    path: Path
    clock: Hands = field(default_factory=Hands)
    telemetry: Seconds = field(default_factory=Seconds)
    provider: ProviderTokens | None = None

    def __post_init__(self) -> None:
        def add(users: dict[str, User]) -> None:
            users["ann"] = User(name="ann", password=HASH, grants=(READ,))
            users["svc"] = User(name="svc", certificates=("svc.shop",), grants=(READ,))

        self.file = users_path(self.path)
        change_users(self.file, add)
        self.key = load_key(self.path)
        self.listed = tokens_path(self.path)
        self.tokens = StoreTokens(self.key, self.clock)
        self.desk = StoreAuthenticator(
            users=self.file,
            tokens=self.tokens,
            revoked=RevokedTokens(self.listed),
            plans=PlanTokens(self.key, self.clock),
            provider=self.provider,
            clock=self.clock,
            telemetry=self.telemetry,
        )

    async def who(self, authorization: str = "", *certificate: str, peer: str = "10.0.0.1") -> Identity:
        return await self.desk.identify(Presented(authorization=authorization, certificate=certificate, peer=peer))


# --- users ------------------------------------------------------------------------------------------------


@ran
async def test_right_credentials_become_an_identity_with_its_rights(tmp_path):
    desk = Desk(tmp_path)
    assert await desk.who(basic("ann", PASSWORD)) == Identity(name="ann", proof="password", grants=(READ,))
    assert (await desk.who("", "DNS:other", "DNS:svc.shop")).proof == "certificate"
    token = desk.tokens.issue("job", [READ], ttl_s=60, token_id=UUID(int=1))
    found = Identity(name="job", proof="token", grants=(READ,), token=UUID(int=1).hex)
    assert await desk.who(f"bearer {token}") == found


WRONG = [
        basic("ann", "wrong horse"), basic("bob", PASSWORD), basic("svc", ""), basic("svc", PASSWORD), basic("", ""),
        "Basic", "Basic ", "Basic %%%", "Basic " + base64.b64encode(b"ann").decode(), "Basic " + base64.b64encode(b"\xff:x").decode(),
        f"Basic {basic('ann', PASSWORD)}", "Digest x", "x" * 100_000, basic("ann", "x" * 5000), basic("ann ", PASSWORD),
        basic("ann", PASSWORD + "\n"), f"{basic('ann', PASSWORD)}, {basic('ann', PASSWORD)}", "Bearer", "Bearer x.y.z",
]  # fmt: skip


@ran
async def test_wrong_credentials_are_refused_even_beside_a_right_certificate(tmp_path):
    desk = Desk(tmp_path)
    for number, authorization in enumerate(WRONG):
        with pytest.raises(UnauthenticatedError) as caught:
            await desk.who(authorization, "DNS:svc.shop", peer=str(number))
        assert PASSWORD not in str(caught.value)
    with pytest.raises(UnauthenticatedError):
        await desk.who("", "unknown")


@ran
async def test_the_password_is_checked_once_while_it_is_remembered(tmp_path, monkeypatch):
    desk, checked = Desk(tmp_path), []
    monkeypatch.setattr(module, "matches", lambda *given: checked.append(1) or matches(*given))
    for _ in range(5):
        await desk.who(basic("ann", PASSWORD))
    assert len(checked) == 1
    desk.telemetry.at_s += module.KNOWN_S
    await desk.who(basic("ann", PASSWORD))
    assert len(checked) == 2
    # Unknown users cost as much as known ones.
    with pytest.raises(UnauthenticatedError):
        await desk.who(basic("bob", PASSWORD))
    assert len(checked) == 3


@ran
async def test_a_removed_user_and_a_removed_right_end_at_once(tmp_path):
    desk = Desk(tmp_path)
    await desk.who(basic("ann", PASSWORD))
    change_users(desk.file, lambda users: users.update(ann=with_grants(users["ann"], (), (READ,))))
    assert (await desk.who(basic("ann", PASSWORD))).grants == ()
    change_users(desk.file, lambda users: users.pop("ann") and None)
    with pytest.raises(UnauthenticatedError):
        await desk.who(basic("ann", PASSWORD))
    change_users(desk.file, lambda users: users.pop("svc") and None)
    with pytest.raises(UnauthenticatedError):
        await desk.who("", "DNS:svc.shop")


@ran
async def test_a_user_who_is_removed_during_the_check_does_not_get_in(tmp_path, monkeypatch):
    desk = Desk(tmp_path)

    def slow(*given: Any) -> bool:
        found = matches(*given)
        change_users(desk.file, lambda users: users.pop("ann") and None)
        return found

    monkeypatch.setattr(module, "matches", slow)
    with pytest.raises(UnauthenticatedError):
        await desk.who(basic("ann", PASSWORD))


@ran
async def test_users_that_cannot_be_read_let_nobody_in(tmp_path):
    desk = Desk(tmp_path)
    await desk.who(basic("ann", PASSWORD))
    desk.file.chmod(0o644)
    with pytest.raises(UnauthenticatedError):
        await desk.who(basic("ann", PASSWORD))
    desk.file.chmod(0o600)
    await desk.who(basic("ann", PASSWORD))


@pytest.mark.parametrize("spoil", [lambda file: file.chmod(0o644), lambda file: file.write_text("?")])
@ran
async def test_the_rights_of_a_user_are_unknown_and_not_none_while_users_cannot_be_read(tmp_path, spoil):
    desk = Desk(tmp_path)
    users, text = desk.desk, desk.file.read_text()
    known = users.grants_of("ann", "password")
    assert known
    spoil(desk.file)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            users.grants_of("ann", "password")
    desk.file.write_text(text)
    desk.file.chmod(0o600)
    assert users.grants_of("ann", "password") == known
    assert users.grants_of("nobody", "password") == ()
    assert users.grants_of("ann", "token") is None


@ran
async def test_users_are_read_again_after_a_failure_of_the_machine(tmp_path, monkeypatch):
    desk = Desk(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    desk.file.touch()
    with monkeypatch.context() as patched:
        patched.setattr(module, "load_users", full)
        with pytest.raises(UnauthenticatedError):
            await desk.who(basic("ann", PASSWORD))
    assert (await desk.who(basic("ann", PASSWORD))).name == "ann"
    # A folder that cannot be looked into hides the users too: one who was removed must not come back.
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", full)
        with pytest.raises(UnauthenticatedError):
            await desk.who(basic("ann", PASSWORD))


@ran
async def test_a_name_in_a_certificate_is_known_by_its_kind(tmp_path):
    desk = Desk(tmp_path)

    def add(users: dict[str, User]) -> None:
        for name, certificate in (("uri", "spiffe://shop/job"), ("mail", "ann@shop"), ("full", "DNS:full.shop")):
            users[name] = User(name=name, certificates=(certificate,), grants=(READ,))

    change_users(desk.file, add)
    # As ``peer_certificate`` returns them.
    for shown, name in (
        ("DNS:svc.shop", "svc"),
        ("URI:spiffe://shop/job", "uri"),
        ("email:ann@shop", "mail"),
        ("DNS:full.shop", "full"),
        ("DNS:SVC.shop", "svc"),
    ):
        assert (await desk.who("", shown)).name == name
    for plain in ("svc.shop", "SVC.shop", "spiffe://shop/Job", "ann@shop"):
        assert certificate_name(certificate_name(plain)) == certificate_name(plain)
    for other in ("URI:svc.shop", "email:svc.shop", "DNS:ann@shop", "svc.shop"):
        with pytest.raises(UnauthenticatedError):
            await desk.who("", other)


@ran
async def test_guessing_slows_the_guesser_down_and_locks_nobody_out(tmp_path, monkeypatch):
    desk = Desk(tmp_path)
    await desk.who(basic("ann", PASSWORD), peer="10.0.0.2")
    monkeypatch.setattr(module, "matches", lambda _, password, _rounds: password == PASSWORD)
    refusals = []
    for number in range(80):
        with pytest.raises((UnauthenticatedError, ThrottledError)) as caught:
            await desk.who(basic("ann", f"guess {number}"), peer=f"10.1.0.{number // 20}")
        refusals.append(caught.type)
    assert refusals.count(UnauthenticatedError) == 40
    for number in range(10):
        with pytest.raises(UnauthenticatedError):
            await desk.who(basic("ann", f"other {number}"), peer=f"10.2.0.{number}")
    with pytest.raises(ThrottledError):
        await desk.who(basic("ann", "another"), peer="10.9.9.9")
    # One who was right before need not wait, even when the password has to be checked again.
    for peer in ("10.0.0.2", "10.1.0.0"):
        desk.desk._known.clear()
        assert (await desk.who(basic("ann", PASSWORD), peer=peer)).name == "ann"
    with pytest.raises(UnauthenticatedError):
        await desk.who(basic("bob", PASSWORD), peer="10.1.0.0")
    for number in range(200):
        with pytest.raises((UnauthenticatedError, ThrottledError)) as caught:
            await desk.who(basic(f"u{number}", "guess"), peer="10.3.0.0")
    assert caught.type is ThrottledError


@given(times=st.lists(st.floats(0, 100), max_size=60), free=st.integers(0, 5))
def test_a_wait_ends_and_a_quiet_time_clears_it(times, free):
    attempts, now_s = Attempts(free=free, keys_max=3), 0.0
    for step in times:
        now_s += step
        attempts.wrong("a", now_s)
        assert 0 <= attempts.wait_s("a", now_s) <= 60.001
    assert attempts.wait_s("a", now_s + 60.001) == 0
    for other in range(10):
        attempts.wrong(other, now_s)
    assert len(attempts) == 3


def test_the_files_are_readable_by_their_owner_only_and_hold_no_password(tmp_path):
    desk = Desk(tmp_path)
    for path in (desk.file, key_path(tmp_path)):
        assert path.stat().st_mode & 0o777 == 0o600
        assert PASSWORD.encode() not in path.read_bytes()
    assert desk.file.parent.stat().st_mode & 0o777 == 0o700
    assert load_key(tmp_path) == desk.key
    key_path(tmp_path).chmod(0o640)
    with pytest.raises(InvalidArgumentError, match="600"):
        load_key(tmp_path)
    assert desk.key.secret.hex() not in repr(desk.key)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"v":1}', '{"v":1,"users":[{"name":"a"}]}', '{"v":1,"users":[{"name":"a:b","grants":[]}]}']
)
def test_damaged_users_are_reported_without_their_contents(tmp_path, text):
    path = users_path(tmp_path)
    change_users(path, lambda _: None)
    path.write_text(text)
    with pytest.raises(CorruptDataError):
        load_users(path)


def test_pravegas_hashes_are_imported_and_stored_as_slow_ones():
    salt, rounds = os.urandom(32), 5000
    derived = hashlib.pbkdf2_hmac("sha256", b"1111_aaaa", salt, rounds, 64)
    line = f"{rounds}:{salt.hex()}:{derived.hex()}".encode().hex()
    stored = import_pravega(line)
    assert matches(stored, "1111_aaaa")
    assert not matches(stored, "1111_aaab")
    assert derived.hex() not in stored.argon2
    for bad in ("", "zz", line[:-2], b"9999999:00:00".hex(), b"0:".hex()):
        with pytest.raises(InvalidArgumentError):
            import_pravega(bad)


@pytest.mark.parametrize("password", ["", "short", "x" * 2000, "a\nb" * 5, "a\0b" * 5])
def test_passwords_that_cannot_be_set_are_refused_without_being_named(password):
    with pytest.raises(InvalidArgumentError) as caught:
        check_password(password)
    assert not password or password not in str(caught.value)


# --- tokens -----------------------------------------------------------------------------------------------

ISSUER, AUDIENCE = "https://id.example", "penstock"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    kinds = {rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm, ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm}
    algorithm = next((found for kind, found in kinds.items() if isinstance(key, kind)), jwt.algorithms.OKPAlgorithm)
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, **more}


KEYS = {
    "keys": [
        jwk(RSA, "r"),
        jwk(EC, "e"),
        jwk(ED, "d"),
        {"kty": "oct", "kid": "o", "k": "c2VjcmV0"},
        jwk(RSA, "enc", use="enc"),
    ]
}


def provided(path: Path) -> Desk:
    clock = Hands()
    settings = JwtSettings(
        issuer=ISSUER,
        audience=AUDIENCE,
        jwks="unused",
        algorithms=("RS256", "ES256", "EdDSA"),
        grants_claim="penstock",
        roles_claim="realm_access.roles",
        roles={"readers": (READ,)},
        name_claim="preferred_username",
    )
    keys = KeySet(lambda: json.dumps(KEYS).encode(), place="test", steady_s=lambda: 0.0)
    return Desk(path, clock=clock, provider=ProviderTokens(settings, keys.key, clock))


def claims(clock: Hands, **changes: Any) -> dict[str, Any]:
    now = clock.ms // 1000
    found = {"iss": ISSUER, "aud": AUDIENCE, "preferred_username": "bob", "iat": now, "exp": now + 60, **changes}
    return {name: value for name, value in found.items() if value is not None}


def signed(found: dict[str, Any], key: Any = RSA, alg: str = "RS256", kid: str | None = "r", **header: Any) -> str:
    return jwt.encode(found, key, algorithm=alg, headers={**({} if kid is None else {"kid": kid}), **header})


@pytest.mark.parametrize(("key", "alg", "kid"), [(RSA, "RS256", "r"), (EC, "ES256", "e"), (ED, "EdDSA", "d")])
@ran
async def test_tokens_of_the_provider_become_identities_with_the_rights_of_their_claims(tmp_path, key, alg, kid):
    desk = provided(tmp_path)
    found = claims(desk.clock, penstock=["/scope:x=write", "nonsense"], realm_access={"roles": ["readers", "other"]})
    identity = await desk.who("Bearer " + signed(found, key, alg, kid))
    assert identity == Identity(name="bob", proof="token", grants=(parse_grant("/scope:x=write"), READ))


def unsigned(header: dict[str, Any], body: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(body).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def confused(body: dict[str, Any]) -> str:
    """A token "signed" with the public key as if it were a shared secret."""
    public = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    text = unsigned({"alg": "HS256", "typ": "JWT", "kid": "r"}, body).rstrip(".")
    mac = hmac.new(public, text.encode(), "sha256").digest()
    return text + "." + base64.urlsafe_b64encode(mac).decode().rstrip("=")


def corpus(clock: Hands) -> dict[str, str]:
    now, good = clock.ms // 1000, claims(clock)
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return {
        "no signature": unsigned({"alg": "none", "kid": "r"}, good),
        "None": unsigned({"alg": "None", "kid": "r"}, good),
        "shared secret of a public key": confused(good),
        "shared secret in the key set": jwt.encode(good, b"secret" * 8, algorithm="HS256", headers={"kid": "o"}),
        "another key": signed(good, other),
        "unknown key": signed(good, kid="x"),
        "no key id": signed(good, kid=None),
        "key for encryption": signed(good, kid="enc"),
        "algorithm not listed": signed(good, alg="RS512"),
        "expired": signed(claims(clock, exp=now - 31)),
        "not yet valid": signed(claims(clock, nbf=now + 31)),
        "issued in the future": signed(claims(clock, iat=now + 3600)),
        "no expiry": signed(claims(clock, exp=None)),
        "expiry is text": signed({**good, "exp": "tomorrow"}),
        "expiry is endless": signed({**good, "exp": 1e300}),
        "wrong audience": signed(claims(clock, aud="other")),
        "no audience": signed(claims(clock, aud=None)),
        "wrong issuer": signed(claims(clock, iss="https://evil.example")),
        "no issuer": signed(claims(clock, iss=None)),
        "no name": signed(claims(clock, preferred_username=None)),
        "name is a list": signed(claims(clock, preferred_username=["root"])),
        "name is not one line": signed(claims(clock, preferred_username="a\nb")),
        "oversize": signed(claims(clock, more="x" * 20_000)),
        "nested": signed(good, cty="JWT"),
        "critical extension": signed(good, crit=["exp"]),
        "detached payload": signed(good, b64=False),
        "four parts": signed(good) + ".x",
        "two parts": signed(good).rpartition(".")[0],
        "empty": "",
        "space inside": signed(good).replace(".", " .", 1),
        "two tokens": signed(good) + "," + signed(good),
        "changed payload": signed(good).replace(".ey", ".eY", 1),
    }


@ran
async def test_tokens_that_are_not_right_in_every_way_are_refused(tmp_path):
    desk = provided(tmp_path)
    for name, token in corpus(desk.clock).items():
        with pytest.raises(UnauthenticatedError) as caught:
            await desk.who(f"Bearer {token}", peer=name)
        assert not token or token not in str(caught.value)
        assert bool(caught.value.fields.get("expired")) == (name == "expired"), name


@ran
async def test_a_token_of_another_store_is_refused_and_a_remembered_one_ends_in_time(tmp_path):
    desk, other = Desk(tmp_path / "a"), Desk(tmp_path / "b")
    token = other.tokens.issue("job", [READ], ttl_s=5, token_id=UUID(int=1))
    assert (await other.who(f"Bearer {token}")).name == "job"
    with pytest.raises(UnauthenticatedError):
        await desk.who(f"Bearer {token}")
    with pytest.raises(UnauthenticatedError):
        desk.tokens.identity(token)
    other.clock.ms += 5000
    with pytest.raises(UnauthenticatedError, match="expired"):
        await other.who(f"Bearer {token}")
    # An expired token is no attack: the address need not wait.
    for _ in range(50):
        with pytest.raises(UnauthenticatedError):
            await other.who(f"Bearer {token}")


@ran
async def test_a_token_for_segments_is_no_bearer_token_and_the_other_way_round(tmp_path):
    desk = Desk(tmp_path)
    delegated = Issuer(desk.key, desk.clock).issue("ann", StreamName("shop", "orders"), frozenset({Action.READ}))
    with pytest.raises(UnauthenticatedError):
        await desk.who(f"Bearer {delegated}")
    verifier = Verifier(desk.key.public_bytes(), desk.clock)
    assert verifier.verify(delegated).actions == {Action.READ}
    for wrong in (desk.tokens.issue("ann", [READ], ttl_s=60, token_id=UUID(int=1)), "", "penstock", "a.b.c"):
        with pytest.raises(UnauthenticatedError) as caught:
            verifier.verify(wrong)
        assert "expired" not in caught.value.fields


def test_delegated_tokens_end_in_time_and_are_issued_again_before(tmp_path):
    key, clock = load_key(tmp_path), Hands()
    issuer, verifier = Issuer(key, clock, token_s=600), Verifier(key.public_bytes(), clock)
    stream, wanted = StreamName("shop", "orders"), frozenset({Action.WRITE, Action.ADMIN})
    first = issuer.issue("ann", stream, wanted)
    assert issuer.issue("ann", stream, wanted) is first
    assert issuer.issue("bob", stream, wanted) != first
    found = verifier.verify(first)
    assert (found.subject, found.stream, found.actions) == ("ann", stream, wanted)
    clock.ms += 120_000
    assert issuer.issue("ann", stream, wanted) != first
    assert verifier.verify(first) is found
    clock.ms = found.expires_ms
    with pytest.raises(UnauthenticatedError) as caught:
        verifier.verify(first)
    assert caught.value.fields["expired"] is True
    other = StreamName("shop", "orders_kvtable")
    assert found.on(stream) == wanted
    assert found.on(other) == found.on(StreamName("shop", "other")) == frozenset()
    both = verifier.verify(issuer.issue("ann", stream, frozenset(), wanted))
    assert (both.on(stream), both.on(other)) == (frozenset(), wanted)
    # What Pravega's Java client looks for in the payload.
    payload = base64.urlsafe_b64decode(first.split(".")[1] + "==").decode()
    assert f'"exp":{found.expires_ms // 1000}' in payload


# --- the provider's keys ----------------------------------------------------------------------------------


@dataclass
class Place:
    """A place of keys that can be down, and counts its visits."""

    keys: list[dict[str, Any]]
    visits: int = 0
    down: bool = False
    at_s: float = 0.0
    failure: Exception = field(default_factory=lambda: OSError("no answer"))

    def fetch(self) -> bytes:
        self.visits += 1
        if self.down:
            raise self.failure
        return json.dumps({"keys": self.keys}).encode()


@ran
async def test_keys_are_cached_rotated_and_used_for_a_bounded_time_while_their_place_is_down():
    place = Place([jwk(ED, "one")])
    keys = KeySet(place.fetch, place="test", steady_s=lambda: place.at_s)
    for _ in range(3):
        await keys.key("one")
    assert place.visits == 1
    place.keys.append(jwk(EC, "two"))
    with pytest.raises(UnauthenticatedError):
        await keys.key("two")
    assert place.visits == 1  # not fetched again so soon, whatever ids callers name
    place.at_s += 10
    await asyncio.gather(*(keys.key("two") for _ in range(5)))
    assert place.visits == 2
    place.keys.pop(0)
    place.at_s += 301
    with pytest.raises(UnauthenticatedError):
        await keys.key("one")
    place.down = True
    place.at_s += 3000
    await keys.key("two")
    place.at_s += 601
    with pytest.raises(UnauthenticatedError):
        await keys.key("two")
    place.down = False
    place.at_s += 10
    await keys.key("two")


@ran
async def test_a_place_that_speaks_no_http_leaves_the_keys_in_use():
    place = Place([jwk(ED, "one")], failure=http.client.BadStatusLine("?"))
    keys = KeySet(place.fetch, place="test", steady_s=lambda: place.at_s)
    await keys.key("one")
    place.down = True
    place.at_s += 301
    await keys.key("one")
    assert set(parse_keys(json.dumps({"keys": [jwk(ED, "d"), jwk(EC, "n", alg="none")]}).encode())) == {"d"}


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example/keys",
        "ftp://id.example",
        "file:///etc/passwd",
        "https://u:p@id.example",
        "http://127.0.0.1.evil.example/x",
    ],
)
def test_keys_come_from_a_file_https_or_loopback_only(url):
    with pytest.raises(InvalidArgumentError):
        key_set(url, steady_s=lambda: 0.0)


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys": 1}', json.dumps({"keys": [{}] * 101}).encode()])
def test_key_sets_that_are_none_are_refused(document):
    with pytest.raises((ValueError, InvalidArgumentError)):
        parse_keys(document)


def test_weak_and_malformed_keys_are_left_out():
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    document = json.dumps({"keys": [jwk(weak, "weak"), {"kty": "RSA", "kid": "bad"}, 7, {"kty": "EC"}, *KEYS["keys"]]})
    assert set(parse_keys(document.encode())) == {"r", "e", "d"}


@ran
async def test_keys_are_read_over_http_from_loopback_without_redirects(tmp_path):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("location", "/keys")
                self.end_headers()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(KEYS).encode())

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            place = f"http://127.0.0.1:{server.server_port}"
            await key_set(f"{place}/keys", steady_s=lambda: 0.0).key("d")
            with pytest.raises(UnauthenticatedError):
                await key_set(f"{place}/moved", steady_s=lambda: 0.0).key("d")
        finally:
            server.shutdown()
            thread.join()
    (tmp_path / "keys.json").write_text(json.dumps(KEYS))
    await key_set(str(tmp_path / "keys.json"), steady_s=lambda: 0.0).key("d")


@pytest.mark.parametrize("algorithm", ["none", "HS256", "", "rs256"])
def test_settings_refuse_algorithms_without_a_key_pair(algorithm):
    with pytest.raises(InvalidArgumentError):
        JwtSettings(issuer="a", audience="b", jwks="c", algorithms=(algorithm,))
