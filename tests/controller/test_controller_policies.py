"""Policies at three levels: stored, viewed by Pravega's clients, checked against all below, refused whole, kept unreadable."""

from __future__ import annotations

import asyncio
import json

import pytest
from controller_world import STREAM, audit_entries, config, name_of, opened, seg, table_keys, with_stream
from memory_segments import MemorySegments

from penstock.codec.control.policies import policy_fields
from penstock.codec.control.streams import StreamRecord
from penstock.controller import keys
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    ScopeNotFoundError,
    StreamNotFoundError,
    VersionTooNewError,
)
from penstock.model.names import AUDIT_STREAM, StreamName
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.retention import EMPTY, Backlog, Idle, Level, OnExceed, PolicyDocument, Retain, Unsubscribed
from penstock.testing.fakes import FakeClock

SIZE = RetentionPolicy(type=RetentionType.SIZE, minimum=10, maximum=50)
FULL = PolicyDocument(
    retain=Retain(min_bytes=10, max_age_s=60.5),
    backlog=Backlog(ttl_s=7, max_bytes=None, on_exceed=OnExceed.EVICT),
    idle=Idle(subscriber_s=3600),
    grace_s=30,
)


def run(work) -> None:
    asyncio.run(work())


def stored_record(segments: MemorySegments, name: StreamName = STREAM) -> StreamRecord:
    return StreamRecord.decode(segments.tables[keys.TABLE].entries[keys.stream(name)][0])


def test_each_level_keeps_its_document_over_restarts() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            assert await controller.policies.get(STREAM) == EMPTY
            await controller.policies.set(STREAM, FULL)
            await controller.policies.set("s", PolicyDocument(grace_s=5))
            await controller.policies.set(None, PolicyDocument(backlog=Backlog(max_events=9)))
        async with opened(segments) as controller:
            assert await controller.policies.get(STREAM) == FULL
            assert await controller.policies.get("s") == PolicyDocument(grace_s=5)
            assert await controller.policies.get(None) == PolicyDocument(backlog=Backlog(max_events=9))
            policy = await controller.policies.effective(STREAM)
            assert (policy.min_bytes, policy.max_age_ms, policy.ttl_ms) == (10, 60_500, 7000)
            assert (policy.grace_ms, policy.origins["grace_s"]) == (30_000, Level.STREAM)
            assert (policy.backlog_events, policy.origins["backlog.max_events"]) == (9, Level.SERVER)
            await controller.policies.set(STREAM, EMPTY)
            assert (await controller.policies.effective(STREAM)).origins["grace_s"] is Level.SCOPE
            assert "policy/s/t" not in table_keys(segments)

    run(work)


def test_what_is_not_there_has_no_policy() -> None:
    async def work() -> None:
        async with with_stream(MemorySegments()) as controller:
            for target, error in (
                (StreamName("s", "no"), StreamNotFoundError),
                (StreamName("no", "t"), ScopeNotFoundError),
                ("no", ScopeNotFoundError),
            ):
                with pytest.raises(error):
                    await controller.policies.get(target)
                with pytest.raises(error):
                    await controller.policies.set(target, FULL)

    run(work)


def test_a_pravega_policy_is_a_view_of_the_document() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments, retention=SIZE) as controller:
            plain = PolicyDocument(retain=Retain(min_bytes=10, max_bytes=50), unsubscribed=Unsubscribed.RELEASE)
            assert await controller.policies.get(STREAM) == plain
            # What Pravega can say is stored as it was before there were documents.
            assert json.loads(stored_record(segments).encode())["v"] == 1
            mixed = PolicyDocument(retain=Retain(min_bytes=10, min_age_s=5), backlog=Backlog(ttl_s=7))
            await controller.policies.set(STREAM, mixed)
            assert (await controller.streams.config(STREAM)).retention is None
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=4), backlog=Backlog(ttl_s=7)))
            shown = (await controller.streams.config(STREAM)).retention
            assert shown == RetentionPolicy(type=RetentionType.SIZE, minimum=4)

    run(work)


def test_a_pravega_client_replaces_its_part_of_the_document_and_nothing_else() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            document = PolicyDocument(retain=Retain(min_bytes=4, min_age_s=9), backlog=Backlog(ttl_s=7), grace_s=3)
            await controller.policies.set(STREAM, document)
            # It writes back what it was shown: nothing changes.
            await controller.streams.update(STREAM, config(1, tags=("x",)))
            assert await controller.policies.get(STREAM) == document
            assert (await controller.streams.config(STREAM)).tags == ("x",)
            await controller.streams.update(STREAM, config(1, SIZE))
            changed = await controller.policies.get(STREAM)
            assert changed.retain == Retain(min_bytes=10, max_bytes=50)
            assert (changed.backlog, changed.grace_s) == (document.backlog, 3)
            await controller.streams.update(STREAM, config(1))
            assert await controller.policies.get(STREAM) == PolicyDocument(backlog=document.backlog, grace_s=3)

    run(work)


def test_a_document_that_contradicts_itself_is_refused_and_the_old_one_stays() -> None:
    async def work() -> None:
        async with with_stream(MemorySegments()) as controller:
            await controller.policies.set(STREAM, FULL)
            with pytest.raises(InvalidArgumentError) as caught:
                await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=9, max_bytes=8)))
            fields = caught.value.fields
            assert (fields["field"], fields["value"], fields["level"]) == ("retain.min_bytes", "9", "stream")
            assert {"rule", "accepted"} <= fields.keys()
            with pytest.raises(InvalidArgumentError):
                await controller.policies.set(STREAM, PolicyDocument(backlog=Backlog(ttl_s=-1)))
            assert await controller.policies.get(STREAM) == FULL

    run(work)


def test_a_level_is_held_against_every_level_below_and_above() -> None:
    async def work() -> None:
        async with with_stream(MemorySegments()) as controller:
            await controller.scopes.create("other")
            await controller.streams.create(StreamName("other", "x"), config())
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=100)))
            for target in ("s", None):
                with pytest.raises(InvalidArgumentError) as caught:
                    await controller.policies.set(target, PolicyDocument(retain=Retain(max_bytes=99)))
                assert caught.value.fields["stream"] == "s/t"
                assert caught.value.fields["level"] == "stream"
                assert await controller.policies.get(target) == EMPTY
            await controller.policies.set("other", PolicyDocument(retain=Retain(max_bytes=99)))
            await controller.policies.set("s", PolicyDocument(retain=Retain(max_bytes=100)))
            with pytest.raises(InvalidArgumentError):
                await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=101)))
            # The server's own minimum meets the scope's maximum where no stream has a document at all.
            with pytest.raises(InvalidArgumentError) as caught:
                await controller.policies.set(None, PolicyDocument(retain=Retain(min_bytes=100)))
            assert caught.value.fields["level"] == "server"
            # A scope that stops speaking uncovers the server's word.
            await controller.policies.set("other", EMPTY)
            await controller.policies.set("s", PolicyDocument(retain=Retain(max_bytes=500)))
            await controller.policies.set(None, PolicyDocument(retain=Retain(max_bytes=50)))
            with pytest.raises(InvalidArgumentError):
                await controller.policies.set("s", EMPTY)

    run(work)


def test_one_change_of_a_scope_writes_one_record_however_many_streams_it_has() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            for number in range(20):
                await controller.streams.create(StreamName("s", f"x{number}"), config())
            before = segments.mutations
            await controller.policies.set("s", PolicyDocument(retain=Retain(min_bytes=1)))
            assert segments.mutations - before == 1

    run(work)


def test_policies_of_levels_above_leave_internal_streams_alone() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            await controller.policies.set(None, PolicyDocument(retain=Retain(max_bytes=0)))
            mark = StreamName("s", "_MARKt")
            assert not (await controller.policies.effective(mark)).truncates
            segments.write(name_of(seg(0, 0), mark), b"x" * 10)
            await controller.retention.run(mark)
            assert (await controller.streams.describe(mark)).size_bytes == 10
            for internal in (mark, AUDIT_STREAM, AUDIT_STREAM.scope):
                with pytest.raises(InvalidArgumentError):
                    await controller.policies.set(internal, FULL)

    run(work)


def test_a_change_of_policy_is_told_by_the_audit_stream() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments, retention=SIZE) as controller:
            await controller.policies.set(STREAM, PolicyDocument(grace_s=3))
            await controller.policies.set(None, PolicyDocument(grace_s=4))
            first, second = await audit_entries(controller, segments, "policy")
            assert (first["target"], first["level"]) == ("s/t", "stream")
            assert first["before"]["retain"] == {"min_bytes": 10, "max_bytes": 50}
            assert first["after"] == {"grace_s": 3}
            assert first["policy"]["grace_s"] == {"value": 3, "from": "stream"}
            assert (second["target"], second["level"], second["before"]) == ("", "server", {})

    run(work)


@pytest.mark.parametrize("newer", [True, False], ids=["newer", "damaged"])
def test_a_policy_that_cannot_be_read_keeps_all_data_and_says_so(newer: bool) -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        error = VersionTooNewError if newer else CorruptDataError
        async with with_stream(segments, 1, clock, retention=RetentionPolicy(type=RetentionType.SIZE)) as controller:
            record = stored_record(segments)
            fields = json.loads(record.encode())
            policy = {"v": 2, "document": {"future": 1}} if newer else {"v": 1, "document": {"retain": 7}}
            broken = json.dumps({**fields, "v": 2, "policy": policy, "ending": False}).encode()
            table = segments.tables[keys.TABLE]
            table.entries[keys.stream(STREAM)] = (broken, table.entries[keys.stream(STREAM)][1])
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            clock.ms += 1000
            for _ in range(3):
                decision = await controller.retention.run(STREAM)
                assert (decision.rule, decision.truncate) == ("unreadable-policy", None)
            explained = await controller.retention.explain(STREAM)
            assert explained.unreadable.startswith("stream: policy ")
            assert [item.kind for item in explained.ranges] == ["unreadable-policy"]
            assert (await controller.streams.describe(STREAM)).size_bytes == 10
            for ask in (controller.policies.get, controller.policies.effective):
                with pytest.raises(error):
                    await ask(STREAM)
            reported = await audit_entries(controller, segments, "policy")
            assert [entry["kept"] for entry in reported] == [True]
            # A Pravega client may change what it knows of, but not the part of a policy that it cannot be shown.
            await controller.streams.update(
                STREAM, config(1, (await controller.streams.config(STREAM)).retention, ("x",))
            )
            with pytest.raises(error):
                await controller.streams.update(STREAM, config(1, SIZE))
            assert stored_record(segments).policy == policy
            # A new policy says what its author wants.
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=0)))
            await controller.retention.run(STREAM)
            assert (await controller.streams.describe(STREAM)).size_bytes == 0

    run(work)


def test_a_damaged_policy_of_the_scope_stops_every_rule_of_its_streams() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=RetentionPolicy(type=RetentionType.SIZE)) as controller:
            await controller.policies.set("s", PolicyDocument(grace_s=0))
            table = segments.tables[keys.TABLE]
            table.entries[keys.scope_policy("s")] = (b"\x00", table.entries[keys.scope_policy("s")][1])
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            clock.ms += 1000
            assert (await controller.retention.run(STREAM)).rule == "unreadable-policy"
            with pytest.raises(CorruptDataError):
                await controller.policies.get("s")
            await controller.policies.set("s", EMPTY)
            assert (await controller.retention.run(STREAM)).truncate == {"0#0": 10}

    run(work)


def test_streams_of_the_first_release_have_the_document_of_their_pravega_policy() -> None:
    old = (
        b'{"v":1,"state":"active","config":{"scaling":["fixed",0,0,1],"retention":["time",5000,null],"tags":[],'
        b'"aggregation_ms":0,"rollover_bytes":0},"incarnation":0,"epoch":0,"next":1,"created_ms":9,"work":null}'
    )

    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            table = segments.tables[keys.TABLE]
            table.entries[keys.stream(STREAM)] = (old, table.entries[keys.stream(STREAM)][1])
            document = await controller.policies.get(STREAM)
            assert document.retain == Retain(min_age_s=5, max_age_s=None)
            assert document.unsubscribed is Unsubscribed.RELEASE

    run(work)


def test_a_scope_created_anew_does_not_inherit_the_policy_of_the_one_before() -> None:
    async def work() -> None:
        async with opened(MemorySegments()) as controller:
            await controller.scopes.create("s")
            await controller.policies.set("s", FULL)
            await controller.scopes.delete("s")
            await controller.scopes.create("s")
            assert await controller.policies.get("s") == EMPTY

    run(work)


def test_the_policy_form_in_a_stream_record_is_the_documents() -> None:
    assert policy_fields(PolicyDocument(grace_s=1)) == {"v": 1, "document": {"grace_s": 1}}
