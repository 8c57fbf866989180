"""Refused calls reach the audit stream: from every door, summed by minute, and without holding a caller up."""

import asyncio
import json
import logging

import pytest
from access_world import run

from penstock.app.access.refusal_audit import RefusalAudit
from penstock.client.store import AsyncStore
from penstock.codec.wire import commands as c
from penstock.core.access.refusals import Reason, Refusal
from penstock.model.errors import StorageFullError
from penstock.storage.machine.rng import RealRng
from penstock.testing.fakes import FakeClock
from penstock.testing.simulation.machine.loop import SimLoop

SEGMENT = "shop/orders/0.#epoch.0"


async def recorded(opened):
    """The entries about refusals in the audit stream, after a flush."""
    await opened.refusals.flush()
    await opened.controller.drain_audit()
    store = AsyncStore(opened.store, opened.controller, opened.clock, RealRng())
    async with store.stream("_system/audit").reader(until_tail=True) as reader:
        entries = [json.loads(event.data) async for event in reader]
    return [entry for entry in entries if entry["kind"] == "refused"]


def test_refusals_of_every_door_are_in_the_audit_stream(tmp_path):
    async def test(opened):
        for _ in range(3):
            assert (await opened.http("GET", "/v1/scopes", "wrong")).status == 401
        assert (await opened.http("GET", "/v1/scopes", "expired")).status == 401
        assert (await opened.http("DELETE", "/v1/scopes/other", "reader")).status == 403
        assert (await opened.http("GET", "/v1/scopes", "none")).status == 401
        peer = await opened.peer()
        await peer.send(c.GetStreamSegmentInfo(1, SEGMENT, "no token"))
        assert isinstance(await peer.receive(), c.AuthTokenCheckFailed)
        await peer.close()
        found = {(entry["reason"], entry.get("via", "")): entry for entry in await recorded(opened)}
        wrong = found["credentials", ""]
        assert (wrong["peer"], wrong["count"], wrong["target"]) == ("127.0.0.1", 3, "")
        assert found["expired", ""]["count"] == 1
        right = found["right", "http"]
        assert right["call"].startswith("scopes.")
        assert (right["count"], right["peer"]) == (1, "127.0.0.1")
        assert right["identity"]
        assert right["needs"]
        wire = found["credentials", "wire"]
        assert (wire["call"], wire["peer"]) == ("GetStreamSegmentInfo", "127.0.0.1")
        assert len(found) == 4, "a call without credentials is counted elsewhere"
        assert "Bearer" not in json.dumps(list(found.values()))

    run(tmp_path, test)


def test_a_flood_writes_once_a_minute():
    written = []

    async def record(entries):
        written.append([entry["count"] for entry in entries])

    async def main():
        async with RefusalAudit(record, FakeClock()) as audit:
            for _ in range(5):
                for number in range(2000):
                    audit(Refusal(reason=Reason.CREDENTIALS, peer=f"10.0.{number % 100}.1"))
                await asyncio.sleep(30)

    SimLoop(1).run(main())
    assert sum(map(sum, written)) == 10_000
    assert len(written) <= 3
    assert all(len(counts) <= 21 for counts in written)


def test_a_full_disk_loses_no_call_and_is_logged(caplog):
    async def record(_entries):
        raise StorageFullError("the disk is full")

    async def main():
        async with RefusalAudit(record, FakeClock()) as audit:
            audit(Refusal(reason=Reason.RIGHT, identity="ann", peer="10.0.0.1"))
            assert await audit.flush() == 0

    with caplog.at_level(logging.ERROR):
        SimLoop(1).run(main())
    assert [record.refusals for record in caplog.records] == [1]


@pytest.mark.parametrize("count", [0, 1])
def test_waiting_refusals_are_written_at_the_end(count):
    written = []

    async def record(entries):
        written.extend(entries)

    async def main():
        async with RefusalAudit(record, FakeClock()) as audit:
            for _ in range(count):
                audit(Refusal(reason=Reason.EXPIRED, peer="10.0.0.1"))

    SimLoop(1).run(main())
    assert len(written) == count


def test_a_write_under_way_at_the_end_is_completed():
    written = []

    async def record(entries):
        await asyncio.sleep(5)
        written.extend(entries)

    async def main():
        async with RefusalAudit(record, FakeClock()) as audit:
            audit(Refusal(reason=Reason.EXPIRED, peer="10.0.0.1"))
            await asyncio.sleep(61)
            audit(Refusal(reason=Reason.EXPIRED, peer="10.0.0.2"))

    SimLoop(1).run(main())
    assert [entry["peer"] for entry in written] == ["10.0.0.1", "10.0.0.2"]


def test_an_unexpected_error_ends_no_later_write(caplog):
    written = []

    async def record(entries):
        if not written:
            written.append(None)
            raise OSError("no such device")
        written.extend(entries)

    async def main():
        async with RefusalAudit(record, FakeClock()) as audit:
            for _ in range(2):
                audit(Refusal(reason=Reason.EXPIRED, peer="10.0.0.1"))
                await asyncio.sleep(61)
            assert len(written) == 2

    SimLoop(1).run(main())
    assert [record.refusals for record in caplog.records] == [1]
