"""Reads with tokens: what was allowed once is not checked again, and nothing else is allowed by it."""

from __future__ import annotations

import asyncio

import pytest

from penstock.codec.wire import commands as c
from penstock.core.access import commands as rules
from penstock.model.errors import PermissionDeniedError, UnauthenticatedError
from penstock.model.identity import Action
from penstock.model.names import StreamName
from penstock.net.wire import permits as permits_module
from penstock.net.wire.permits import Permits
from penstock.ports.access.tokens import Delegated
from penstock.ports.telemetry import NoTelemetry


class Verifier:
    """Knows tokens by their text; ``ended`` ones have expired."""

    def __init__(self):
        self.known = {}
        self.ended = set()

    def now_ms(self):
        return 0

    def verify(self, token):
        if token in self.ended:
            raise UnauthenticatedError("the token has expired", expired=True)
        return self.known[token]


def delegated(stream, *actions):
    return Delegated(subject="me", stream=StreamName.parse(stream), actions=frozenset(actions), expires_ms=7)


def read(stream, token, number=0):
    return c.ReadSegment(f"{stream}/{number}.#epoch.0", 5, 1024, token, 9)


@pytest.fixture
def verifier():
    return Verifier()


@pytest.fixture
def permits(verifier):
    loop = asyncio.new_event_loop()
    yield Permits(verifier, loop, NoTelemetry(), lambda _writer, _rid: True)
    loop.close()


def test_a_read_that_was_allowed_allows_no_other(verifier, permits):
    verifier.known = {"all": delegated("s/a", Action.READ), "write": delegated("s/a", Action.WRITE)}
    for _ in range(3):
        assert permits.admit(read("s/a", "all")) == read("s/a", "7")
        with pytest.raises(PermissionDeniedError):
            permits.admit(read("s/b", "all"))
        with pytest.raises(PermissionDeniedError):
            permits.admit(read("s/a", "write"))


def test_a_token_that_ended_or_lost_its_right_allows_no_read_any_more(verifier, permits):
    verifier.known = {"mine": delegated("s/a", Action.READ)}
    permits.admit(read("s/a", "mine"))
    verifier.known = {"mine": delegated("s/a")}
    with pytest.raises(PermissionDeniedError):
        permits.admit(read("s/a", "mine"))
    verifier.ended.add("mine")
    with pytest.raises(UnauthenticatedError):
        permits.admit(read("s/a", "mine"))


def test_the_right_to_read_is_looked_up_once_for_a_segment(verifier, permits, monkeypatch):
    asked = []
    monkeypatch.setattr(permits_module, "permits", lambda *given: asked.append(given) or rules.permits(*given))
    verifier.known = {"mine": delegated("s/a", Action.READ)}
    for _ in range(5):
        for number in range(10):
            permits.admit(read("s/a", "mine", number))
    assert len(asked) == 10
    for number in range(1000):
        permits.admit(read("s/a", "mine", number))
        permits.admit(read("s/a", "mine", f"{number:0300}"))
    assert len(permits._readable) <= 64
    assert max(map(len, permits._readable)) <= 256
