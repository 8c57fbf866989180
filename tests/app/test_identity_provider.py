"""Tokens of a real identity provider, Keycloak, at a server with TLS: by every door, while keys are replaced, and while
it is down. Set up by: make test-idp"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keycloak import HOME, Keycloak

import penstock
from penstock.model.credentials import Credentials
from penstock.model.errors import PermissionDeniedError, UnauthenticatedError
from penstock.testing.server import ServerProcess
from tests.certificates import Authority

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.skipif(not (HOME / "bin" / "kc.sh").exists(), reason="Keycloak is set up by: make test-idp"),
]
ROOT = Authority()
SETTINGS = """
[jwt]
issuer = "{issuer}"
audience = "penstock"
jwks = "{jwks}"
name_claim = "preferred_username"
roles_claim = "realm_access.roles"
leeway_seconds = 0

[jwt.roles]
readers = ["/scope:shop=read"]
operators = ["/scope:shop=read,write,admin,retain"]
"""
AGAIN_S = 40.0
"""The server fetches keys at most every 10 seconds, and remembers verified tokens for 10; the rest is for a busy machine."""


class Site:
    """The provider, a server that trusts it, and its clients."""

    def __init__(self, provider: Keycloak, server: ServerProcess, ca: Path) -> None:
        self.provider, self.server, self.ca = provider, server, ca

    def connect(self, credentials: Credentials) -> penstock.Store:
        return penstock.connect(f"tls://{self.server.address}", tls_ca=self.ca, credentials=credentials)

    def accepts(self, token: str) -> bool:
        """Whether gRPC and HTTP let the token in: both do, or neither does."""
        status = self.http(token, "GET", "/v1/scopes")
        try:
            self.connect(Credentials.bearer(token)).close()
        except UnauthenticatedError:
            return False
        return status == 200

    def refuses(self, token: str) -> bool:
        if self.http(token, "GET", "/v1/scopes") != 401:
            return False
        with pytest.raises(UnauthenticatedError):
            self.connect(Credentials.bearer(token)).close()
        return True

    def http(self, token: str, method: str, path: str) -> int:
        context = ssl.create_default_context(cafile=str(self.ca))
        connection = http.client.HTTPSConnection("localhost", self.server.http_port, timeout=30, context=context)
        try:
            connection.request(method, path, headers={"authorization": f"Bearer {token}"})
            return connection.getresponse().status
        finally:
            connection.close()

    def command(self, token: Path, *words: str) -> subprocess.CompletedProcess[str]:
        options = ("--controller", f"tls://{self.server.address}", "--tls-ca", str(self.ca), "--token-file", str(token))
        return subprocess.run(
            [sys.executable, "-m", "penstock", *words, *options],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env=os.environ,
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    path = tmp_path_factory.mktemp("idp")
    with Keycloak(path / "keycloak.log") as provider:
        settings = path / "auth.toml"
        settings.write_text(SETTINGS.format(issuer=provider.issuer, jwks=provider.jwks))
        options = (*ROOT.issue(path).options(), "--auth", "--auth-config", str(settings))
        with ServerProcess(path / "data", *options) as server:
            site = Site(provider, server, ROOT.write(path / "ca.pem"))
            with site.connect(Credentials.bearer(provider.token_of_job())) as store:
                store.create_scope("shop")
            yield site


def eventually(condition: Callable[[], bool], patience_s: float = AGAIN_S) -> None:
    give_up = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.5)


def write(stream: penstock.Stream, *events: bytes) -> None:
    with stream.writer() as writer:
        for event in events:
            writer.write(event, key="k")
        writer.flush()


def expiry_s(token: str) -> int:
    body = token.split(".")[1]
    return int(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"])


def test_clients_of_the_provider_work_with_the_rights_of_their_roles_at_every_door(site: Site, tmp_path: Path) -> None:
    with site.connect(Credentials.bearer_from(site.provider.token_of_job)) as store:
        write(store.create_stream("shop/orders"), b"one", b"two")
    ann = site.provider.token_of_ann()
    with site.connect(Credentials.bearer(ann)) as store:
        with store.stream("shop/orders").reader() as reader:
            found = [event.data for event in (reader.read(timeout_s=20), reader.read(timeout_s=20)) if event]
        assert [bytes(data) for data in found] == [b"one", b"two"]
        with pytest.raises(PermissionDeniedError):
            write(store.stream("shop/orders"), b"three")
    assert site.http(ann, "GET", "/v1/scopes/shop/streams/orders") == 200
    assert site.http(ann, "DELETE", "/v1/scopes/shop/streams/orders") == 403
    file = tmp_path / "token"
    file.write_text(ann)
    file.chmod(0o600)
    listed = site.command(file, "stream", "list", "shop")
    assert listed.returncode == 0, listed.stderr
    assert "orders" in listed.stdout
    refused = site.command(file, "stream", "create", "shop/other")
    assert refused.returncode != 0
    assert "ann" in refused.stderr


def test_a_token_for_another_audience_is_refused(site: Site) -> None:
    assert site.refuses(site.provider.token_of_job("stranger"))


def test_a_token_ends_in_time_and_a_client_that_asks_again_goes_on(site: Site) -> None:
    token = site.provider.token_of_job("brief")
    with site.connect(Credentials.bearer_from(lambda: site.provider.token_of_job("brief"))) as store:
        stream = store.create_stream("shop/brief")
        written = 0
        while time.time() < expiry_s(token) + 5:
            write(stream, b"x")
            assert store.stream("shop/brief").config() is not None
            written += 1
    assert site.refuses(token)
    assert written > 1


def test_keys_are_replaced_while_clients_work(site: Site) -> None:
    provider = site.provider
    before = provider.token_of_job()
    assert site.accepts(before)
    provider.add_key()
    second, name = provider.token_of_job(), provider.newest_key()
    assert kid(second) != kid(before)
    eventually(lambda: site.accepts(second))
    assert site.accepts(before), "its key is still published"
    provider.remove_keys_but(name)
    provider.add_key()
    third = provider.token_of_job()
    assert kid(third) not in {kid(before), kid(second)}
    eventually(lambda: site.accepts(third))
    assert site.accepts(second)
    eventually(lambda: site.refuses(before))


def kid(token: str) -> str:
    head = token.split(".")[0]
    return str(json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))["kid"])


def test_known_keys_are_used_while_the_provider_is_down_and_fetched_when_it_is_back(site: Site) -> None:
    """For how long at most is tested with a clock that a test can move (test_credentials)."""
    assert site.accepts(site.provider.token_of_job())
    unused = site.provider.token_of_ann()
    site.provider.stop()
    assert site.accepts(unused)
    site.server.kill()
    site.server.start()
    assert site.refuses(unused), "a server that has no keys lets nobody in"
    assert "keys of the identity provider cannot be read" in site.server.log.read_text()
    # Its data was in memory, so it has new keys.
    site.provider.start()
    fresh = site.provider.token_of_ann()
    eventually(lambda: site.accepts(fresh))
    assert site.refuses(unused)
