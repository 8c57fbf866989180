"""The span of a request crosses the wire protocol, and clients without one see the bytes they always saw."""

from uuid import UUID

import pytest
from traces_world import tracing
from wire_peers import remote, run, stage

from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.model.errors import SegmentSealedError
from penstock.model.traces.spans import Kind, SpanContext, spanning
from penstock.net.dial import wire_dial
from penstock.ports.data.segments import NO_EVENT, Append

SEGMENT = "s/t/0.#epoch.0"
WRITER = UUID(int=7)
AROUND = SpanContext(0xABC, 0xDEF, sampled=True)
PARTS = ["receive and decode", "commit to the log", "acknowledge"]


def end(writer, number, rid=1):
    data = b"\0\0\0\0\0\0\0\1x"
    return c.AppendBlockEnd(writer, len(data), data, 1, number, rid)


def append(number, trace=None):
    previous = number - 1 if number else NO_EVENT
    return Append(segment=SEGMENT, writer=WRITER, data=b"x" * 9, event_number=number, previous=previous, trace=trace)


def named(tracer, name):
    return [span for span in tracer.spans if span.name == name]


def test_a_keep_alive_without_a_span_has_the_bytes_it_always_had():
    assert wire.encode(c.KeepAlive()).hex() == "0000006400000000"
    traced = wire.encode(c.KeepAlive(AROUND.to_bytes()))
    assert traced[:8].hex() == "000000640000001a"
    assert wire.decode(100, memoryview(traced)[8:]).trace == AROUND.to_bytes()


@pytest.mark.parametrize("data", [b"", b"x", b"\1" * 25, b"\2" + AROUND.to_bytes()[1:], AROUND.to_bytes() + b"more"])
def test_surplus_bytes_that_name_no_span_change_nothing(data):
    async def main():
        async with stage() as scene:
            peer = await scene.peer()
            await peer.send(c.KeepAlive(data))
            assert await peer.receive() == c.KeepAlive()

    run(main())


@pytest.mark.parametrize("on", [False, True])
def test_a_span_that_is_named_has_no_answer_of_its_own(on):
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 7)
            await peer.send(c.KeepAlive(AROUND.to_bytes()), end(writer, 1))
            assert isinstance(await peer.receive(), c.DataAppended)
            assert await peer.ask(c.KeepAlive()) == c.KeepAlive()

    if on:
        with tracing():
            run(main())
    else:
        run(main())


def test_an_append_belongs_to_the_span_that_its_client_names():
    async def main(tracer):
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 7)
            await peer.send(c.KeepAlive(AROUND.to_bytes()), end(writer, 1), end(writer, 2))
            for _ in range(2):
                assert isinstance(await peer.receive(), c.DataAppended)
            await peer.ask(c.KeepAlive())

    with tracing() as tracer:
        run(main(tracer))
    first, *others = named(tracer, "store s/t")
    assert (first.parent, first.kind, first.attributes["penstock.event.number"]) == (AROUND, Kind.SERVER, 1)
    assert all(span.parent != AROUND for span in others)
    inside = [span for span in tracer.spans if span.parent == first.context]
    assert [span.name for span in inside] == PARTS
    assert [first.start_ns, *(span.end_ns for span in inside)] == sorted(
        [first.start_ns, *(span.end_ns for span in inside)]
    )
    assert [span.start_ns for span in inside[1:]] == [span.end_ns for span in inside[:-1]]
    assert first.end_ns == inside[-1].end_ns


def test_appends_and_reads_of_our_client_arrive_inside_its_span():
    async def main():
        async with stage() as scene, remote(scene.server, scene.store) as segments:
            await scene.store.create_segment(SEGMENT)
            await segments.setup_append(SEGMENT, WRITER)
            with spanning("job") as job:
                await segments.append(append(0, job.context))
                await segments.append(append(1))
                assert b"".join((await segments.read(SEGMENT, 0, 100)).parts) == b"x" * 18
                await segments.seal(SEGMENT)
                with pytest.raises(SegmentSealedError):
                    await segments.append(append(2, job.context))
            return job

    with tracing() as tracer:
        job = run(main())
    stored = [span for span in named(tracer, "store s/t") if span.parent == job.context]
    assert [span.attributes["penstock.event.number"] for span in stored] == [0, 2]
    assert [type(span.error) for span in stored] == [type(None), SegmentSealedError]
    assert [span.parent for span in named(tracer, "read s/t")] == [job.context]
    assert [span.parent for span in named(tracer, "SealSegment")] == [job.context]
    assert all(span.end_ns is not None for span in tracer.spans)


@pytest.mark.parametrize("sampled", [None, False])
def test_without_a_recorded_span_our_client_sends_what_it_always_sent(monkeypatch, sampled):
    def refuse(_span):
        raise AssertionError("a span was named")

    monkeypatch.setattr(wire_dial, "trace_frame", refuse)

    async def main():
        async with stage() as scene, remote(scene.server, scene.store) as segments:
            await scene.store.create_segment(SEGMENT)
            await segments.setup_append(SEGMENT, WRITER)
            with spanning("job"):
                await segments.append(append(0))
                await segments.read(SEGMENT, 0, 100)

    if sampled is None:
        run(main())
    else:
        with tracing(sampled=sampled):
            run(main())
