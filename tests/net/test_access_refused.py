"""A caller whose credentials are missing or wrong is counted each time, and logged once a minute."""

from __future__ import annotations

import asyncio

import pytest

from penstock.app.telemetry import Counters
from penstock.model.callers import Caller
from penstock.model.errors import PenstockError, ThrottledError, UnauthenticatedError
from penstock.model.identity import Identity
from penstock.net.access.doors import identified
from penstock.net.access.refusals import Refusals
from penstock.ports.access.authenticator import Presented


class Refusing:
    def __init__(self, error: PenstockError) -> None:
        self.error = error

    async def identify(self, shown: Presented) -> Identity:
        raise self.error


@pytest.mark.parametrize("kind", [UnauthenticatedError, ThrottledError])
def test_refused_credentials_are_logged_once_a_minute_and_counted(
    kind: type[PenstockError], caplog: pytest.LogCaptureFixture
) -> None:
    counters, now_s = Counters(), 0.0
    refused = Refusals(counters, lambda: now_s)

    async def call() -> None:
        with pytest.raises(kind):
            await identified(Caller(via="http", peer="10.0.0.7"), Refusing(kind("no credentials")), "", (), refused)

    for _ in range(50):
        asyncio.run(call())
    now_s = 61.0
    asyncio.run(call())
    lines = [(item.peer, item.reason, item.more_before) for item in caplog.records if item.message == "call refused"]
    assert lines == [("10.0.0.7", "no credentials", 0), ("10.0.0.7", "no credentials", 49)]
    counted = {labels: value for name, labels, value in counters.snapshot().counts if name == "refusals"}
    assert counted == {("http", kind.__name__): 51}
