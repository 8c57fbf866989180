"""Coordination on a real ZooKeeper: the laws of the port, and what happens when sessions, servers and clients fail."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from penstock.model.errors import (
    ClusterNotFoundError,
    CoordinatorUnavailableError,
    InvalidArgumentError,
    SessionEndedError,
    UnknownOutcomeError,
    WrongClusterError,
)
from penstock.storage.machine.clock import boot_seconds
from penstock.testing.conformance import laws, run_conformance
from penstock.testing.conformance.coordination import CoordinationLaws, outcome
from tests.cluster.zookeeper_kit import SESSION_S, ZooKeeperLaws, expire, make_root, new_root, session

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("law", laws(CoordinationLaws))
def test_the_laws_of_the_port(zookeeper, law):
    run_conformance(lambda: ZooKeeperLaws(zookeeper.address), law=law)


def run(main):
    async def limited():
        async with asyncio.timeout(60):
            return await main

    return asyncio.run(limited())


def test_the_root_of_another_cluster_is_refused_with_a_message(zookeeper):
    async def main():
        root = new_root()

        async def refused(kind, root=root, cluster="ours"):
            with pytest.raises(kind) as caught:
                async with session(zookeeper.address, root, cluster=cluster):
                    pass
            return str(caught.value)

        assert "no node at this root" in await refused(ClusterNotFoundError)
        await make_root(zookeeper.address, root)
        await make_root(zookeeper.address, root)  # once more is harmless
        assert "another cluster" in await refused(WrongClusterError, cluster="theirs")
        with pytest.raises(WrongClusterError):
            await make_root(zookeeper.address, root, "theirs")
        half = root.rpartition("/")[0]
        assert "names no cluster" in await refused(ClusterNotFoundError, half)
        with pytest.raises(WrongClusterError, match="belong to no cluster"):
            await make_root(zookeeper.address, half)
        assert "path such as" in await refused(InvalidArgumentError, "no-slash")
        async with session(zookeeper.address, root, cluster=None) as opened:
            assert list(await opened.members("")) == []

    run(main())


def test_an_unreachable_server_is_reported_in_time():
    async def main():
        with pytest.raises(CoordinatorUnavailableError, match="does not answer"):
            async with session("127.0.0.1:1", "/any", patience_s=0.5):
                pass

    run(main())


def test_the_lease_ends_before_the_session_and_grows_while_it_is_heard(zookeeper):
    async def main():
        root = new_root()
        await make_root(zookeeper.address, root)
        async with session(zookeeper.address, root) as opened:
            first = opened.session().lease_end_s
            assert first <= boot_seconds() + SESSION_S * 2 / 3
            while opened.session().lease_end_s < first + SESSION_S:  # idle: the keeper alone renews it
                assert opened.session().lease_end_s > boot_seconds()
                await asyncio.sleep(0.05)

    run(main())


def test_the_lease_follows_the_session_length_that_the_server_granted(zookeeper):
    async def main():
        root = new_root()
        await make_root(zookeeper.address, root)
        asked_s, most_s = 600.0, 20 * 0.5
        async with session(zookeeper.address, root, session_s=asked_s) as opened:
            assert opened.session().lease_end_s <= boot_seconds() + most_s * 2 / 3

    run(main())


CLIENT = """
import asyncio, sys
sys.path[:0] = sys.argv[3:]
from tests.cluster.zookeeper_kit import session

async def main():
    async with session(sys.argv[1], sys.argv[2]) as opened:
        await opened.register("here", b"")
        print("registered", flush=True)
        await opened.ended()

asyncio.run(main())
"""


def test_the_registration_of_a_killed_process_is_deleted_after_its_session(zookeeper):
    async def main():
        root = new_root()
        await make_root(zookeeper.address, root)
        paths = [str(Path(__file__).parents[2]), *sys.path]
        command = [sys.executable, "-c", CLIENT, zookeeper.address, root, *paths]
        client = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        try:
            assert await client.stdout.readline() == b"registered\n"
            async with session(zookeeper.address, root) as opened:
                killed_s = boot_seconds()
                async with aclosing(opened.notices("")) as notices:
                    os.kill(client.pid, signal.SIGKILL)
                    async for _ in notices:
                        if list(await opened.members("")) == []:
                            break
                gone_s = boot_seconds() - killed_s
            print(f"kill -9 to the registration gone: {gone_s:.2f} s, session {SESSION_S} s")
            assert gone_s > SESSION_S / 3  # not at once: the kernel's goodbye ends the connection, not the session
        finally:
            if client.returncode is None:
                client.kill()
            await client.wait()

    run(main())


def test_an_expired_session_that_was_cut_off_has_lost_its_lease_before(zookeeper):
    """SIGSTOP of the server: nothing answers. Our own clock ends the lease; the server says so only when it wakes."""

    async def main():
        root = new_root()
        await make_root(zookeeper.address, root)
        (server,) = zookeeper.servers
        async with session(zookeeper.address, root, patience_s=0.5) as opened:
            await opened.create("a", b"")
            server.pause()
            try:
                paused_s = boot_seconds()
                lost = await outcome(opened.set("a", b"1", 0))
                assert lost is UnknownOutcomeError
                assert await outcome(opened.read("a")) is CoordinatorUnavailableError
                while boot_seconds() < opened.session().lease_end_s:
                    await asyncio.sleep(0.05)
                assert boot_seconds() < paused_s + SESSION_S
                assert not opened.session().ended
            finally:
                server.resume()
            # Whether the session lives is the server's to say; the change was made or not, once.
            while (found := await outcome(opened.read("a"))) in (CoordinatorUnavailableError, UnknownOutcomeError):
                await asyncio.sleep(0.05)
            if found is not SessionEndedError:
                assert (found.version, found.data) in ((0, b""), (1, b"1"))

    run(main())


def test_nothing_is_changed_in_the_session_that_kazoo_opens_after_an_expiry(zookeeper):
    async def main():
        root = new_root()
        await make_root(zookeeper.address, root)
        async with session(zookeeper.address, root) as one, session(zookeeper.address, root) as other:
            await one.create("a", b"")
            await expire(zookeeper.address, one)
            results = [await outcome(one.set("a", b"late", 0)) for _ in range(20)]
            assert set(results) == {SessionEndedError}
            await other.sync()
            assert (await other.read("a")).version == 0

    run(main())


def test_changes_survive_a_killed_leader_and_each_is_made_once(engines, tmp_path):
    import cluster_engines

    async def main(ensemble):
        root = new_root()
        await make_root(ensemble.address, root)
        async with session(ensemble.address, root, session_s=4.0) as one:
            await one.create("a", b"")
            await one.register("here", b"")
            leader = ensemble.leader()
            version, longest_s, stop_at = 0, 0.0, boot_seconds() + 6
            killed = False
            while boot_seconds() < stop_at:
                began_s = boot_seconds()
                # A set that was repeated although it had been made would be refused: its version is used up.
                version = await one.set("a", b"%d" % version, version)
                longest_s = max(longest_s, boot_seconds() - began_s)
                if not killed and version > 20:
                    killed = True
                    leader.kill()
            node = await one.read("a")
            assert (node.version, node.data) == (version, b"%d" % (version - 1))
            assert list(await one.members("")) == ["a", "here"]
            assert not one.session().ended
            assert one.session().lease_end_s > boot_seconds()
            print(f"leader killed: {version} sets, longest {longest_s:.2f} s")
            assert killed

    with cluster_engines.ZooKeeper(tmp_path, members=3) as ensemble:
        run(main(ensemble))


def test_a_read_that_a_server_without_a_leader_answers_renews_no_lease(engines, tmp_path):
    """Why only writes renew a lease: a server answers reads for some ticks after its leader has gone silent."""
    import cluster_engines

    async def main(ensemble):
        root = new_root()
        await make_root(ensemble.address, root)
        leader = ensemble.leader()
        follower = next(server for server in ensemble.servers if server is not leader)
        async with session(f"127.0.0.1:{follower.port}", root, session_s=6.0) as one:
            leader.pause()
            try:
                await asyncio.sleep(0.2)  # answers of writes that were under way
                lease_end_s, answered = one.session().lease_end_s, 0
                while await outcome(one.members("")) == [] and answered < 20:
                    assert one.session().lease_end_s == lease_end_s
                    answered += 1
                print(f"reads answered without a leader: {answered}")
                assert answered
            finally:
                leader.resume()

    with cluster_engines.ZooKeeper(tmp_path, members=3) as ensemble:
        run(main(ensemble))


def test_a_session_can_be_closed_while_nothing_answers(zookeeper):
    async def main():
        root = new_root()
        await make_root(zookeeper.address, root)
        (server,) = zookeeper.servers
        async with session(zookeeper.address, root) as one:
            await one.register("here", b"")
            waiting = asyncio.ensure_future(outcome(one.ended()))
            server.pause()
            try:
                began_s = boot_seconds()
                await one.close()
                print(f"closed without an answer in {boot_seconds() - began_s:.2f} s")
                await waiting
                assert one.session().ended
            finally:
                server.resume()
        async with session(zookeeper.address, root) as other, aclosing(other.notices("")) as notices:
            async for _ in notices:
                if list(await other.members("")) == []:
                    break

    run(main())
