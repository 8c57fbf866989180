"""A store that does not have a table any more answers for it, because some clients never ask again where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.app.cluster import passing
from penstock.codec.wire import commands as c
from penstock.codec.wire import table_commands as t
from penstock.codec.wire.frames import Command
from penstock.codec.wire.layout import WireEntry, WireKey
from penstock.net.wire.wire_errors import OWN_TOKEN
from penstock.ports.data.tables import ANY_VERSION, KEY_ABSENT
from tests.cluster.store_node_kit import MemoryCluster, Peer, RunningStore, run, until_serving

ANY, NONE = ANY_VERSION, KEY_ABSENT
BAD_TOKEN_RID = 15


def requests(table: str, token: str = "") -> Sequence[Command]:
    """Every request about tables, in an order in which all of them have an effect, and those that are refused."""
    entries = [WireEntry(b"a", NONE, b"1"), WireEntry(b"b", ANY, b"2")]
    return [
        t.ReadTable(1, table, token, [WireKey(b"a", ANY)]),
        t.CreateTableSegment(2, table, token),
        t.CreateTableSegment(3, table, token),
        t.UpdateTableEntries(4, table, token, entries),
        t.UpdateTableEntries(5, table, token, [WireEntry(b"a", NONE, b"3")]),
        t.UpdateTableEntries(6, table, token, [WireEntry(b"a", ANY, b"3")], table_offset=1),
        t.GetTableSegmentInfo(7, table, token),
        t.ReadTable(8, table, token, [WireKey(b"a", ANY), WireKey(b"missing", ANY)]),
        t.ReadTableKeys(9, table, token, 1),
        t.ReadTableEntries(10, table, token, 10),
        t.ReadTableEntriesDelta(11, table, token, 0, 10),
        t.DeleteTableSegment(12, table, True, token),
        t.RemoveTableKeys(13, table, token, [WireKey(b"c", 7)]),
        t.RemoveTableKeys(14, table, token, [WireKey(b"a", ANY), WireKey(b"b", ANY)]),
        t.ReadTableKeys(BAD_TOKEN_RID, table, token, 10, b"\x07 not a token of ours"),
        t.DeleteTableSegment(16, table, True, token),
        t.GetTableSegmentInfo(17, table, token),
    ]


async def answers(peer: Peer, commands: Sequence[Command]) -> list[Command | None]:
    return [await peer.ask(command) for command in commands]


def plain(answer: Command | None, table: str) -> object:
    """The answer without the name of the table, so that those about two tables can be compared."""
    if answer is None:
        return None
    fields = [bytes(value) if isinstance(value, memoryview) else value for value in answer]
    return repr(answer._make(fields)).replace(table, "TABLE")


def two_names(cluster: MemoryCluster) -> tuple[str, str]:
    """Two tables of container 0. Their names have the same length: the sizes of tables must not differ by it."""
    found = [f"shop/{count:04}" for count in range(1000) if cluster.owns(0, f"shop/{count:04}")]
    return found[0], found[1]


def test_a_store_answers_each_request_about_a_table_as_its_owner_does(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a, cluster.store("b") as b:
            cluster.assign(dict.fromkeys(range(4), "a"))
            await until_serving(cluster, dict.fromkeys(range(4), "a"))
            async with a.peer() as stays, b.peer() as other:
                # The client has known a all the time.
                assert isinstance(await stays.ask(t.GetTableSegmentInfo(1, two_names(cluster)[0])), c.NoSuchSegment)
                cluster.assign(dict.fromkeys(range(4), "b"))
                await until_serving(cluster, dict.fromkeys(range(4), "b"))
                one, two = two_names(cluster)
                passed = [plain(answer, one) for answer in await answers(stays, requests(one))]
                direct = [plain(answer, two) for answer in await answers(other, requests(two))]
        kinds = [str(text).partition("(")[0] for text in direct]
        assert kinds.count("TableEntriesUpdated") == 1
        assert {"SegmentAlreadyExists", "TableKeyBadVersion", "TableSegmentNotEmpty"} <= set(kinds)
        assert {"SegmentIsTruncated", "ErrorMessage", "NoSuchSegment"} <= set(kinds)
        for sent, by_owner, by_other in zip(requests("TABLE"), direct, passed, strict=True):
            assert by_other == by_owner, sent

    run(main())


async def moved(cluster: MemoryCluster, a: RunningStore) -> None:
    cluster.assign({0: "a"})
    await until_serving(cluster, {0: "a"})
    async with a.peer() as peer:
        assert isinstance(await peer.ask(t.CreateTableSegment(1, two_names(cluster)[0])), c.SegmentCreated)
    cluster.assign({0: "b"})
    await until_serving(cluster, {0: "b"})


def test_our_own_clients_and_other_requests_are_sent_to_the_controller(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a, cluster.store("b"):
            await moved(cluster, a)
            table = two_names(cluster)[0]
            async with a.peer() as peer:
                # What another store has passed on is marked in the same way, so no request goes round in circles.
                for command in requests(table, OWN_TOKEN):
                    if command.rid == BAD_TOKEN_RID:
                        continue  # refused before a store is looked for
                    assert isinstance(await peer.ask(command), c.WrongHost), command
                for other in (
                    c.GetStreamSegmentInfo(1, table, ""),
                    c.CreateSegment(2, cluster.segment_of(0), 0, 0, "", 0),
                    c.DeleteSegment(3, table, ""),
                ):
                    assert isinstance(await peer.ask(other), c.WrongHost), other

    run(main())


def test_while_nobody_has_the_table_the_client_gets_an_answer_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "_LIMITS", replace(passing._LIMITS, retry_for_s=0.5))
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a, cluster.store("b") as b:
            await moved(cluster, a)
            table = two_names(cluster)[0]
            put = t.UpdateTableEntries(1, table, "", [WireEntry(b"a", ANY, b"1")])
            async with a.peer() as peer:
                assert isinstance(await peer.ask(put), t.TableEntriesUpdated)
                cluster.assign({})
                await until_serving(cluster, {})
                assert isinstance(await peer.ask(put), c.WrongHost)
                cluster.assign({0: "a"})
                await until_serving(cluster, {0: "a"})
                assert isinstance(await peer.ask(put), t.TableEntriesUpdated)
                # The store that it was sent to is gone now, and it must not be asked again.
                cluster.assign({0: "b"})
                await until_serving(cluster, {0: "b"})
                assert isinstance(await peer.ask(put), t.TableEntriesUpdated)
                b.sessions[-1].pause()
                cluster.assign({0: "a"})
                await until_serving(cluster, {0: "a"})
                assert isinstance(await peer.ask(put), t.TableEntriesUpdated)

    run(main())


async def asked_again(peer: Peer, command: Command) -> Command | None:
    """The answer. If a container closes under a request, that is ``WrongHost``, and clients ask again."""
    while isinstance(answer := await peer.ask(command), c.WrongHost):
        await asyncio.sleep(0.01)
    return answer


def test_stores_that_pass_requests_to_each_other_wait_for_no_room_of_their_own(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a, cluster.store("b") as b:
            cluster.assign({0: "a"})
            await until_serving(cluster, {0: "a"})
            table = two_names(cluster)[0]
            async with AsyncExitStack() as stack:
                peers = [await stack.enter_async_context(one.peer()) for one in (a, b) for _ in range(40)]
                assert isinstance(await peers[0].ask(t.CreateTableSegment(1, table)), c.SegmentCreated)
                for store in ("b", "a", "b"):
                    # A move: until it is over, each store asks the other one, or itself.
                    cluster.assign({0: store})
                    read = t.ReadTableEntriesDelta(2, table, "", 0, 10)
                    found = await asyncio.gather(*(asked_again(peer, read) for peer in peers))
                    assert {type(answer) for answer in found} == {t.TableEntriesDeltaRead}

    run(main())


def test_a_store_that_hangs_takes_no_room_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "_WAIT_S", 0.3)
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a, cluster.store("b") as b, AsyncExitStack() as stack:
            await moved(cluster, a)
            table = two_names(cluster)[0]
            peers = [await stack.enter_async_context(a.peer()) for _ in range(3 * passing._LARGE_AT_A_TIME)]
            go_on = asyncio.Event()
            unit = b.unit(0)
            scan = unit.table_scan

            async def hang(*words: Any, **options: Any) -> Any:
                await go_on.wait()
                return await scan(*words, **options)

            monkeypatch.setattr(unit, "table_scan", hang)
            read = t.ReadTableKeys(2, table, "", 10)
            found = await asyncio.gather(*(peer.ask(read) for peer in peers))
            assert found == [None] * len(peers), "the connections are closed, and clients open others"
            go_on.set()
            async with a.peer() as peer:
                assert isinstance(await peer.ask(read), t.TableKeysRead)

    run(main())
