"""Changes whose request or answer is lost on the way to a real ZooKeeper: each is made once, and its caller learns it."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from penstock.model.errors import ConflictError, NodeNotFoundError
from penstock.ports.cluster.coordination import Create, Delete, Set
from penstock.storage.cluster.zookeeper import ZooKeeperCoordination
from penstock.testing.conformance.coordination import outcome
from tests.cluster.zookeeper_kit import make_root, new_root, session

pytestmark = pytest.mark.cluster


class Relay:
    """A TCP relay that cuts some connections: with the bytes of a request, or with those of an answer, in hand."""

    def __init__(self, port: int, rng: random.Random, share: float) -> None:
        self.port, self.rng, self.share = port, rng, share
        self.lost_requests = self.lost_answers = 0

    @asynccontextmanager
    async def serving(self):
        async with asyncio.TaskGroup() as group:
            tasks = []

            def accept(reader, writer):
                tasks.append(group.create_task(self.relay(reader, writer)))

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            try:
                yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            finally:
                server.close()
                for task in tasks:
                    task.cancel()

    async def relay(self, reader, writer):
        above_reader, above_writer = await asyncio.open_connection("127.0.0.1", self.port)
        ways = [
            asyncio.ensure_future(self.copy(reader, above_writer, "lost_requests")),
            asyncio.ensure_future(self.copy(above_reader, writer, "lost_answers")),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            writer.transport.abort()
            above_writer.transport.abort()

    async def copy(self, source, target, lost):
        try:
            while data := await source.read(65536):
                if self.rng.random() < self.share:
                    setattr(self, lost, getattr(self, lost) + 1)
                    return
                target.write(data)
                await target.drain()
        except ConnectionError:
            return


async def change_and_check(zookeeper, seed: int, rounds: int) -> Relay:
    root = new_root()
    await make_root(zookeeper.address, root)
    relay = Relay(zookeeper.ports[0], random.Random(seed), 0.03)
    async with (
        asyncio.timeout(120),
        relay.serving() as address,
        session(address, root, session_s=8.0, patience_s=30.0) as one,
    ):
        await one.create("a", b"")
        for version in range(rounds):
            # One writer: a change that was made twice, or reported as refused although it was made, raises.
            assert await one.set("a", b"same", version) == version + 1
            await one.multi([Create("b", b""), Create("b/c", b""), Set("b", b"1", 0)])
            assert (await one.read("b")).version == 1
            await one.multi([Delete("b/c", 0), Delete("b", 1)])
            assert await outcome(one.read("b")) is NodeNotFoundError
        assert not one.session().ended
        assert (await one.read("a")).version == rounds
    return relay


@pytest.mark.parametrize("seed", [1, 2])
def test_each_change_is_made_once_though_its_answer_is_lost(zookeeper, seed):
    relay = asyncio.run(change_and_check(zookeeper, seed, 150))
    print(f"lost requests: {relay.lost_requests}, lost answers: {relay.lost_answers}")
    assert min(relay.lost_requests, relay.lost_answers) > 3


@pytest.mark.parametrize("guess", [False, True])
def test_a_client_that_guesses_an_outcome_is_detected(zookeeper, monkeypatch, guess):
    async def guessed(*_: object) -> bool:
        return guess

    monkeypatch.setattr(ZooKeeperCoordination, "_was_made", guessed)
    with pytest.raises(BaseException) as caught:  # the relay's group wraps what ends it
        asyncio.run(change_and_check(zookeeper, 1, 150))
    wrong = (ConflictError, NodeNotFoundError, AssertionError)
    assert caught.group_contains(wrong) if isinstance(caught.value, BaseExceptionGroup) else caught.errisinstance(wrong)
