"""The line between a server and its workers: what goes in comes out, in order, or fails in a way the caller can act on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_pair import echo, pair

from penstock.client.writing.write_blocks import WriteBlock
from penstock.model.errors import (
    ContainerOfflineError,
    InternalError,
    NotConnectedError,
    PenstockError,
    ProtocolError,
    QuotaHeldError,
    RetentionHoldError,
    TruncatedError,
    UnsupportedError,
)
from penstock.net.workers.line import WorkerLine
from penstock.net.workers.link import LinkDownError, open_link
from penstock.net.workers.values import decode_error, decode_value, encode_error, encode_value
from penstock.ports.data.chunks import ChunkBlock, ChunkRange
from penstock.ports.data.limits import AppendLimit, LimitAction
from penstock.ports.data.segments import Append
from penstock.ports.data.tables import TableEntry, TableKind

PATIENCE_S = 20.0

plain = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.uuids()
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)
whole = st.integers(0, 1 << 62)
records = (
    st.builds(
        Append,
        segment=st.text(),
        writer=st.uuids(),
        data=st.binary(),
        event_number=whole,
        event_count=whole,
        previous=st.integers(-(1 << 63), 1 << 62),
        expected_offset=st.none() | whole,
    )
    | st.builds(TableEntry, key=st.binary(), value=st.binary(), version=whole)
    | st.builds(
        AppendLimit,
        stream=st.text(),
        segments=st.lists(st.text()),
        total_bytes=st.none() | whole,
        action=st.sampled_from(LimitAction),
        reason=st.dictionaries(st.text(), st.text() | whole | st.none()),
    )
    | st.builds(
        ChunkRange,
        name=st.text(),
        location=st.none() | st.text(),
        start_offset=whole,
        end_offset=whole,
        blocks=st.lists(st.builds(ChunkBlock, start_offset=whole, end_offset=whole, crc32c=whole, event_count=whole)),
    )
)


def through(value: object) -> object:
    text, beside = encode_value(value)
    return decode_value(text, b"".join(beside))


@given(value=values | records | st.sampled_from(TableKind))
def test_values_come_out_as_they_went_in(value: object) -> None:
    assert through(value) == value


def test_views_and_tuples_come_out_as_bytes_and_lists() -> None:
    assert through((bytearray(b"ab"), memoryview(b"xyz")[1:])) == [b"ab", b"yz"]


@pytest.mark.parametrize(
    "error",
    [
        TruncatedError("gone", segment="s/t/0", start_offset=5),
        RetentionHoldError("held", hold=UUID(int=1), owner="me", reason=None),
        QuotaHeldError("full", limit=4, used=4.5),
        UnsupportedError("not offered"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_keep_their_class_message_and_fields(error: PenstockError) -> None:
    text, beside = encode_error(error)
    found = decode_error(text, b"".join(beside))
    assert (type(found), found.message, found.fields) == (type(error), error.message, error.fields)


def test_a_field_that_has_no_form_becomes_text() -> None:
    text, beside = encode_error(InternalError("broken", what=ValueError("x"), size=3))
    assert decode_error(text, b"".join(beside)).fields == {"what": "x", "size": 3}


def test_the_block_of_a_writer_arrives_as_the_append_that_it_is() -> None:
    block = WriteBlock(b"data", 2, (b"k", b"l"), 1)
    block.segment, block.writer, block.event_number, block.previous = "s/t/0.#epoch.0", UUID(int=1), 5, 3
    assert through(block) == Append(
        segment="s/t/0.#epoch.0", writer=UUID(int=1), data=b"data", event_number=5, event_count=2, previous=3
    )


def test_what_none_of_the_ports_has_is_refused() -> None:
    with pytest.raises(InternalError, match="cannot be sent between processes"):
        encode_value(object())


@given(text=st.binary(max_size=60), rest=st.binary(max_size=20))
def test_junk_is_refused(text: bytes, rest: bytes) -> None:
    try:
        decode_value(text, rest)
    except ProtocolError:
        return


@pytest.mark.parametrize(
    "text",
    [b'[["b",1],[]]', b'[["Append",[1]],[]]', b'[["e","None","x"],[]]', b'[["os"],[]]', b"[1,[3]]", b"{}"],
)
def test_values_that_do_not_fit_are_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_value(text, b"")


def run(body) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await body()

    asyncio.run(main())


def test_both_ends_call_each_other_and_large_values_pass() -> None:
    async def body() -> None:
        async with pair({"echo": echo}) as (near, far):
            large = bytes(range(256)) * 20_000
            found = await asyncio.gather(
                *(near.call("echo", number, large) for number in range(8)), far.call("echo", 1)
            )
            assert found == [[number, large] for number in range(8)] + [[1]]

    run(body)


def test_failures_come_back_typed_and_surprises_as_internal_errors() -> None:
    async def refuse(kind: str):
        raise {"ours": TruncatedError("gone", start_offset=3), "system": OSError(28, "full"), "bug": KeyError("x")}[
            kind
        ]

    async def odd():
        return object()

    async def body() -> None:
        async with pair({"refuse": refuse, "odd": odd}) as (near, _):
            with pytest.raises(TruncatedError) as found:
                await near.call("refuse", "ours")
            assert found.value.start_offset == 3
            for call in (
                near.call("refuse", "system"),
                near.call("refuse", "bug"),
                near.call("odd"),
                near.call("none"),
            ):
                with pytest.raises(InternalError):
                    await call

    run(body)


def test_taken_calls_keep_their_order_and_are_answered_later() -> None:
    async def body() -> None:
        taken: list = []
        async with pair({"echo": echo}, {"take": lambda answer, item: taken.append((answer, item))}) as (near, _):
            answers: list = []
            for item in range(5):
                near.start(answers.append, "take", item)
            await near.call("echo")
            assert [item for _, item in taken] == list(range(5))
            for answer, item in reversed(taken):
                answer(ContainerOfflineError("stopped") if item == 2 else item)
            await near.call("echo")
            assert [type(item).__name__ if isinstance(item, Exception) else item for item in answers] == [
                *(4, 3, "ContainerOfflineError", 1, 0)
            ]

    run(body)


def test_a_cancelled_call_is_cancelled_at_the_other_end() -> None:
    async def body() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def wait():
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with pair({"wait": wait}) as (near, _):
            call = asyncio.ensure_future(near.call("wait"))
            await begun.wait()
            call.cancel()
            await ended.wait()
            assert call.cancelled() or not call.done()

    run(body)


@pytest.mark.parametrize("who", ["near", "far"])
def test_the_end_of_one_end_fails_what_the_other_waits_for(who: str) -> None:
    async def body() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def wait():
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with pair({"wait": wait}) as (near, far):
            call = asyncio.ensure_future(near.call("wait"))
            await begun.wait()
            {"near": near, "far": far}[who].close()
            with pytest.raises(NotConnectedError):
                await call
            await ended.wait()
            with pytest.raises(LinkDownError):
                await near.call("wait")

    run(body)


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from("bldeu"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
tagged = plain_json | st.tuples(
    st.sampled_from([*"bldeu", "Append", "ChunkRange", "SegmentChanges", "LimitAction"]),
    st.lists(plain_json, max_size=7),
).map(list)


@given(packed=tagged, sizes=st.lists(st.integers(-3, 3), max_size=3) | plain_json, rest=st.binary(max_size=6))
def test_whatever_a_faulty_process_sends_is_a_value_or_refused(packed: object, sizes: object, rest: bytes) -> None:
    text = json.dumps([packed, sizes]).encode()
    for decode in (decode_value, decode_error):
        with contextlib.suppress(ProtocolError):
            decode(text, rest)


@given(error=st.tuples(st.sampled_from(["TruncatedError", "InternalError", "x"]) | plain_json, plain_json, plain_json))
def test_whatever_a_faulty_process_calls_an_error_is_one_or_refused(error: tuple) -> None:
    name, message, fields = error
    reported = {str(key): value for key, value in fields.items()} if isinstance(fields, dict) else fields
    text, beside = encode_value([name, message, reported])
    with contextlib.suppress(ProtocolError):
        assert isinstance(decode_error(text, b"".join(beside)), PenstockError)


@pytest.mark.parametrize("call", [None, 3, [], [3], [["take"]], {"take": 1}, ["traced"], ["traced", 5, "take"]])
def test_a_call_that_is_none_ends_the_line(call: object) -> None:
    async def body() -> None:
        ours, theirs = socket.socketpair()
        link = await open_link(theirs, name="far", handlers={}, takers={"take": lambda answer: answer(1)})
        text, _ = encode_value(call)
        ours.sendall(struct.pack(">IIBQ", len(text), len(text), 0, 1) + text)
        await link.closed
        ours.close()

    run(body)


def test_an_answer_that_is_no_value_fails_its_call_and_ends_the_line() -> None:
    async def body() -> None:
        ours, theirs = socket.socketpair()
        link = await open_link(theirs, name="far", handlers={})
        call = asyncio.ensure_future(link.call("anything"))
        await asyncio.get_running_loop().run_in_executor(None, ours.recv, 1)
        ours.sendall(struct.pack(">IIBQ", 2, 2, 1, 1) + b"[]")
        with pytest.raises(NotConnectedError):
            await call
        ours.close()

    run(body)


def test_a_taker_with_a_bug_answers_with_an_error_and_the_line_stays() -> None:
    async def body() -> None:
        async with pair({"echo": echo}, {"take": lambda answer: answer(1)}) as (near, _):
            with pytest.raises(InternalError):
                await near.call("take", "one argument too many")
            assert await near.call("take") == 1

    run(body)


def test_an_error_of_another_module_arrives_as_the_nearest_known_one() -> None:
    text, beside = encode_error(LinkDownError("the other process has ended", line="far"))
    error = decode_error(text, b"".join(beside))
    assert (type(error), error.fields) == (NotConnectedError, {"line": "far"})


def test_bytes_that_are_no_frame_end_the_line() -> None:
    async def body() -> None:
        ours, theirs = socket.socketpair()
        link = await open_link(theirs, name="far", handlers={})
        ours.sendall(b"\xff" * 64)
        await link.closed
        ours.close()

    run(body)


def test_each_caller_of_a_worker_that_is_gone_gets_an_error_of_its_own() -> None:
    async def main() -> None:
        line, answers = WorkerLine(3), []
        failure = NotConnectedError("the disk is gone", worker=3)
        waiting = [asyncio.ensure_future(line.call("info", "s", repeat=True)) for _ in range(3)]
        await asyncio.sleep(0)
        line.give_up(failure)
        answers += await asyncio.gather(*waiting, line.call("info", "s", repeat=False), return_exceptions=True)
        line.start(answers.append, "append")
        while len(answers) < 5:
            await asyncio.sleep(0)
        assert {str(one) for one in answers} == {str(failure)}
        assert len({id(one) for one in [*answers, failure]}) == 6
        assert failure.__traceback__ is None

    asyncio.run(main())
