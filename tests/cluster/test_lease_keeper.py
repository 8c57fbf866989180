"""A session whose lease can no longer be renewed ends, and its owner learns it."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from penstock.model.errors import CoordinatorUnavailableError, SessionEndedError, UnknownOutcomeError
from penstock.storage.cluster.kazoo_line import KazooLine
from penstock.storage.cluster.zookeeper import ZooKeeperCoordination
from penstock.testing import InlineOffload
from tests.cluster.virtual_time import run_virtually


class Session(ZooKeeperCoordination):
    """A session whose renewals fail, one after another."""

    def __init__(self, failures: list[Exception]) -> None:
        line = KazooLine("127.0.0.1:1", "s", session_s=4.0, patience_s=1.0, offload=InlineOffload())
        super().__init__(line, "/c", "s", boot_clock=lambda: 0.0, patience_s=1.0)
        self.failures = failures
        self.line = cast("KazooLine", line)

    async def sync(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


def test_a_lease_is_renewed_again_after_an_outage() -> None:
    async def main() -> None:
        session = Session([CoordinatorUnavailableError("away"), UnknownOutcomeError("lost")])
        keeping = asyncio.ensure_future(session.keep())
        await asyncio.sleep(10)
        assert session.failures == []
        assert not session.session().ended
        session.line.end()
        await keeping

    run_virtually(main())


@pytest.mark.parametrize("failure", [RuntimeError("planted"), OSError("planted")])
def test_a_lease_that_nobody_renews_any_more_ends_its_session(failure: Exception) -> None:
    async def main() -> None:
        session = Session([failure])
        keeping = asyncio.ensure_future(session.keep())
        await session.ended()
        assert session.session().ended
        with pytest.raises(SessionEndedError):
            await session.read("config")
        with pytest.raises(type(failure)):
            await keeping

    run_virtually(main())
