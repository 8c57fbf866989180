"""Memory: idle, many segments, parked reads, peers that do not read or lie, masses written, recovery."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import penstock
from bench.bounded_report import Bench, pid_of
from penstock.app import embedded
from penstock.app import segments as budgets
from penstock.app.settings import EmbeddedSettings
from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.segmentstore.settings import StoreSettings
from penstock.testing.server import ServerProcess
from tests.abuse.http2 import HalfSender
from tests.abuse.peers import (
    MIB,
    Peer,
    append,
    cpu_s_of,
    event,
    make_segments,
    memory_of,
    rss_of,
    segment_name,
)


def idle(bench: Bench) -> None:
    """An empty server: memory, and how long it takes to start."""
    server = bench.server("idle")
    with server:
        time.sleep(1)
        rss = rss_of(pid_of(server))
        bench.show("idle", "resident memory of an idle server", f"{rss / MIB:.0f} MiB", "< 114 MiB", met=rss < 120e6)
    walls, cpus = [], []
    for _ in range(3):
        walls.append(server.start())
        cpus.append(cpu_s_of(pid_of(server)))
        server.stop()
    bench.show(
        "idle",
        "start with an empty log: wall, CPU",
        f"{min(walls):.2f} s, {min(cpus):.2f} s",
        "< 1 s",
        met=min(*walls, *cpus) < 1,
    )


def pipelined(peer: Peer, frames: Sequence[bytes], window: int = 256) -> list[wire.Command]:
    """Send all, receive all, so many in flight."""
    answers: list[wire.Command] = []
    for start in range(0, len(frames), window):
        part = frames[start : start + window]
        peer.send(b"".join(part))
        answers += [peer.receive() for _ in part]
    return answers


def segments(bench: Bench) -> None:
    """10,000 segments, each written to, each with a writer of its own, and then idle."""
    count = bench.count(10_000)
    with bench.server("segments") as server, Peer(server.store_port) as peer:
        names = [f"in/use-{index}/0.#epoch.0" for index in range(count)]
        with bench.peak(server, "segments", f"{count:,} segments in use, 5 appends of 1 KiB each"):
            pipelined(peer, [wire.encode(c.CreateSegment(index, name, 0, 0)) for index, name in enumerate(names)])
            writers = [(index + 1).to_bytes(16, "big") for index in range(count)]
            pipelined(
                peer,
                [wire.encode(c.SetupAppend(1, writer, name)) for writer, name in zip(writers, names, strict=True)],
            )
            data = event(bytes(1016))
            for number in range(5):
                pipelined(peer, [append(writer, data, number) for writer in writers])
        time.sleep(12)
        with bench.peak(server, "segments", f"{count:,} segments in use, all quiet"):
            time.sleep(1)


def million(bench: Bench) -> None:
    """A store of a million segments: start, memory at rest, memory while 200,000 of them are visited at random."""
    count = bench.count(1_000_000)
    server = bench.server("million")
    with server:
        pass
    asyncio.run(make_segments(server.data, count))
    with server:
        server.stop()
        wall = server.start()
        cpu = cpu_s_of(pid_of(server))
        bench.show(
            "million",
            f"start with {count:,} segments: wall, CPU",
            f"{wall:.2f} s, {cpu:.2f} s",
            "<= 10 s",
            met=wall <= 10,
        )
        with bench.peak(server, "million", f"{count:,} segments, at rest"):
            time.sleep(2)
        chance = random.Random(7)
        with Peer(server.store_port) as peer:
            visits = bench.count(200_000)
            started = time.monotonic()
            with bench.peak(server, "million", f"{visits:,} of them asked for at random"):
                frames = [
                    wire.encode(c.GetStreamSegmentInfo(index, segment_name(chance.randrange(count))))
                    for index in range(visits)
                ]
                answers = pipelined(peer, frames)
            if not all(isinstance(answer, c.StreamSegmentInfo) for answer in answers):
                raise RuntimeError("a segment was not found")
            took = time.monotonic() - started
            bench.show(
                "million", "visits per second", f"{visits / took:,.0f}/s", ">= 1,000/s", met=visits / took >= 1_000
            )
            visits = bench.count(20_000)
            with bench.peak(server, "million", f"{visits:,} of them written to, each by a writer of its own"):
                for start in range(0, visits, 500):
                    pipelined(
                        peer,
                        [
                            wire.encode(c.SetupAppend(1, (index + 1).to_bytes(16, "big"), segment_name(index)))
                            for index in range(start, start + 500)
                        ],
                    )
                    pipelined(
                        peer,
                        [
                            append((index + 1).to_bytes(16, "big"), event(bytes(100)), 0)
                            for index in range(start, start + 500)
                        ],
                    )
                    if start % 10_000 == 9_500:  # a connection holds 16,384 writers at most
                        peer.close()
                        peer.__init__(server.store_port)  # type: ignore[misc]


def parked(bench: Bench) -> None:
    """1,000 reads that wait at tails; then one append to each of their segments wakes them."""
    count = bench.count(1_000)
    with bench.server("parked") as server, Peer(server.store_port) as writer, ExitStack() as stack:
        segment = "park/here/0.#epoch.0"
        writer.ask(c.CreateSegment(1, segment, 0, 0))
        raw, _ = writer.set_up(segment, 1)
        before = rss_of(pid_of(server))
        readers = [stack.enter_context(Peer(server.store_port, receive_bytes=64 << 10)) for _ in range(count // 10)]
        with bench.peak(server, "parked", f"{count:,} parked reads on {len(readers)} connections, then 1 MiB for each"):
            for reader in readers:
                reader.send(b"".join(wire.encode(c.ReadSegment(segment, 0, 1 << 20, "", rid)) for rid in range(10)))
            time.sleep(1)
            each = (rss_of(pid_of(server)) - before) / count
            pipelined(writer, [append(raw, event(bytes(MIB - 8)), 0)])
            time.sleep(2)
        bench.show("parked", "memory for each parked read", f"{each / 1024:.1f} KiB", "<= 64 KiB", met=each <= 64 << 10)


def unread(bench: Bench) -> None:
    """Clients that ask for 4 GB and never read a reply."""
    with bench.server("unread") as server, Peer(server.store_port) as writer, ExitStack() as stack:
        segment = "never/read/0.#epoch.0"
        writer.ask(c.CreateSegment(1, segment, 0, 0))
        raw, _ = writer.set_up(segment, 1)
        size = bench.count(64)
        for number in range(size):
            pipelined(writer, [append(raw, event(bytes(MIB - 8)), number)])
        with bench.peak(server, "unread", "64 clients ask for 64 MiB each and never read it; a writer goes on"):
            for _ in range(64):
                peer = stack.enter_context(Peer(server.store_port, receive_bytes=4096))
                peer.send(b"".join(wire.encode(c.ReadSegment(segment, at * MIB, MIB, "", at)) for at in range(size)))
                peer.send(b"".join(wire.encode(c.GetStreamSegmentInfo(at, segment)) for at in range(1000)))
            for number in range(size, 2 * size):
                pipelined(writer, [append(raw, event(bytes(MIB - 8)), number)])
            time.sleep(1)


def stallers(bench: Bench) -> None:
    """Clients that announce the largest frame, send half of it, and stay: what they hold, and whether others get through."""
    with bench.server("stallers") as server, ExitStack() as stack:
        head = wire.HEADER.pack(4, wire.FRAME_MAX_BYTES)
        count = bench.count(100)
        with bench.peak(server, "stallers", f"{count:,} clients send 8 of 16 MiB and stall; a writer writes 64 MiB"):
            for _ in range(count):
                peer = stack.enter_context(Peer(server.store_port))
                peer.socket.setblocking(False)
                with suppress(BlockingIOError):
                    peer.socket.send(head)
                    for _ in range(64):
                        peer.socket.send(bytes(128 << 10))
            writer = stack.enter_context(Peer(server.store_port, timeout_s=60))
            segment = "still/here/0.#epoch.0"
            writer.ask(c.CreateSegment(1, segment, 0, 0))
            raw, _ = writer.set_up(segment, 1)
            started = time.monotonic()
            for number in range(64):
                writer.ask(append(raw, event(bytes(MIB - 8)), number))
            took = time.monotonic() - started
        bench.show("stallers", "the writer's 64 MiB took", f"{took:.1f} s", "<= 60 s", met=took <= 60)


def liars(bench: Bench) -> None:
    """Clients that announce the largest frame, send little of it, and stay."""
    with bench.server("liars") as server, ExitStack() as stack:
        head = wire.HEADER.pack(4, wire.FRAME_MAX_BYTES)
        before = memory_of(pid_of(server))["RssAnon"]
        # With little memory fewer connections are taken; some are left for those that come later.
        taken = budgets.wire_limits(EmbeddedSettings(data=server.data, memory_bytes=bench.memory_bytes)).connections
        count = min(bench.count(1_000), taken * 9 // 10)
        with bench.peak(server, "liars", f"{count:,} clients announce 16 MiB and send 100 bytes"):
            for _ in range(count):
                peer = stack.enter_context(Peer(server.store_port))
                peer.send(head + bytes(100))
            time.sleep(1)
            grown = memory_of(pid_of(server))["RssAnon"] - before
        bench.show(
            "liars",
            "memory for each of them",
            f"{grown / count / 1024:.1f} KiB",
            "<= 64 KiB",
            met=grown / count <= 64 << 10,
        )


_CHUNKED = (
    b"POST /v1/scopes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def chunked(bench: Bench) -> None:
    """HTTP clients that send bodies without an end, in chunks of 64 KiB and of one byte, and connect again when refused."""
    for label, size in (("64 KiB", 64 << 10), ("1 byte", 1)):
        chunks = (b"%x\r\n%s\r\n" % (size, bytes(size))) * max(1, (32 << 10) // size)
        for count in (1, bench.count(100)):
            with bench.server("chunked") as server:
                answered: list[float] = []
                with bench.peak(
                    server, "chunked", f"{count:,} HTTP clients send bodies without end, in chunks of {label}"
                ):
                    _send_bodies(server.http_port, chunks, count, answered)
            slowest = max(answered)
            bench.show("chunked", "slowest of 10 requests beside them", f"{slowest:.2f} s", "<= 5 s", met=slowest <= 5)


def _send_bodies(port: int, chunks: bytes, count: int, answered: list[float]) -> None:
    """Abuse the port from so many threads while ten requests are made; adds what each of these took, in seconds."""
    done = threading.Event()

    def send() -> None:
        while not done.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
                peer.sendall(_CHUNKED)
                while not done.is_set():
                    peer.sendall(chunks)

    threads = [threading.Thread(target=send) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            time.sleep(0.5)
            began = time.monotonic()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/scopes", timeout=30) as answer:
                answer.read()
            answered.append(time.monotonic() - began)
    finally:
        done.set()
        for thread in threads:
            thread.join()


def halves(bench: Bench) -> None:
    """gRPC clients that send half of each of 24 requests of 4 MiB and stay; others make calls beside them."""
    with bench.server("halves") as server, ExitStack() as stack:
        count = bench.count(100)
        took: list[float] = []
        with bench.peak(server, "halves", f"{count:,} gRPC clients send half of 24 requests of 4 MiB each"):
            senders = [
                stack.enter_context(HalfSender(server.controller_port, calls=24, request_bytes=4 << 20))
                for _ in range(count)
            ]
            done = threading.Thread(target=_make_streams, args=(server.address, took))
            done.start()
            while done.is_alive():
                for sender in senders:
                    if not sender.closed:
                        sender.step()
                time.sleep(0.001)
            done.join()
        slowest = max(took, default=float("inf"))
        bench.show(
            "halves",
            "slowest of 30 new clients that make a stream",
            f"{slowest:.2f} s",
            "<= 5 s",
            met=len(took) == 30 and slowest <= 5,
        )


def _make_streams(address: str, took: list[float]) -> None:
    for number in range(30):
        began = time.monotonic()
        with penstock.connect(address) as store:
            store.create_stream(f"beside/s{number}", create_scope=True)
        took.append(time.monotonic() - began)
        time.sleep(0.2)


def written(bench: Bench) -> None:
    """A gigabyte in appends of many sizes, over 8 connections, as fast as it goes."""
    total = bench.count(1 << 30)
    with bench.server("written") as server:
        for label, sizes in (
            ("1 MiB", [MIB]),
            ("16 KiB to 64 KiB among 100 B", [16 << 10, 100, 64 << 10, 100, 20_000]),
        ):
            with bench.peak(server, "written", f"{total >> 20:,} MiB written in appends of {label}"):
                _write_all(server, total, sizes, label)
        rss = rss_of(pid_of(server))
        bench.show("written", "afterwards", f"{rss / MIB:.0f} MiB", "(shown)", met=True)


def _write_all(server: ServerProcess, total: int, sizes: Sequence[int], label: str) -> None:
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            with Peer(server.store_port, timeout_s=60) as peer:
                segment = f"masses/w{number}-{sizes[0]}/0.#epoch.0"
                peer.ask(c.CreateSegment(1, segment, 0, 0))
                raw, _ = peer.set_up(segment, number + 1)
                frames = [event(os.urandom(size - 8)) for size in sizes]
                sent = at = in_flight = 0
                while sent < total // 8:
                    data = frames[at % len(frames)]
                    peer.send(append(raw, data, at))
                    sent += len(data)
                    at += 1
                    in_flight += 1
                    if in_flight >= 16:
                        acked = peer.receive()
                        if not isinstance(acked, c.DataAppended):
                            raise TypeError(f"not acknowledged: {acked}")
                        in_flight -= acked.event_number - acked.previous_number
                while in_flight > 0:
                    acked = peer.receive()
                    in_flight -= acked.event_number - acked.previous_number  # type: ignore[attr-defined]
        except BaseException as error:  # noqa: BLE001 - shown by the caller
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def recovery(bench: Bench) -> None:
    """A server killed with a log of 1 KiB records that tier 2 has nothing of, and started again."""
    total = bench.count(3072) * _BATCH_RECORDS * _RECORD_BYTES  # 192 MiB
    server = bench.server("recovery", "--log", "1GiB")
    with server:
        empty = cpu_s_of(pid_of(server))
    process = multiprocessing.get_context("spawn").Process(target=fill_log, args=(str(server.data), total))
    process.start()
    process.join()
    if process.exitcode != _DIED:
        raise RuntimeError(f"the log was not written: exit status {process.exitcode}")
    wall = server.start(120)
    pid = pid_of(server)
    cpu = cpu_s_of(pid) - empty
    with Peer(server.store_port) as peer:
        length = peer.ask(c.GetStreamSegmentInfo(1, _LOGGED)).length  # type: ignore[attr-defined]
    if length != total:
        raise RuntimeError(f"recovered {length} of {total} bytes")
    what = f"{total / MIB:.0f} MiB of log in 1 KiB records after a kill"
    per_gib = (1 << 30) / total
    bench.show("recovery", f"{what}: wall until it serves", f"{wall:.2f} s", "(shown)", met=True)
    bench.show(
        "recovery",
        "CPU per GiB of log, start not counted",
        f"{cpu * per_gib:.1f} s",
        "<= 10 s",
        met=cpu * per_gib <= 10,
    )
    peak = memory_of(pid)["VmHWM"]
    bench.show("recovery", "most memory", f"{peak / MIB:.0f} MiB", "(shown)", met=True)
    server.stop()


_LOGGED = "many/small/0.#epoch.0"
_DIED = 9
_RECORD_BYTES = 1024
_BATCH_RECORDS = 64


def fill_log(data: str, total: int, record_bytes: int = _RECORD_BYTES, per_append: int = 1) -> None:
    """Write whole batches of records to a store that neither tiers nor checkpoints, and die. ``per_append``: how many
    records a client's run of frames has, which the log keeps as one append; it divides the batch."""
    own = budgets.store_settings

    def settings(given: EmbeddedSettings) -> StoreSettings:
        return replace(
            own(given),
            flush_interval_s=3600.0,
            flush_bytes=1 << 30,
            max_unflushed_bytes=1 << 31,
            checkpoint_interval_s=3600.0,
            checkpoint_bytes=1 << 40,
            checkpoint_rows_bytes=1 << 30,
        )

    async def fill() -> None:
        async with embedded.open_runtime(EmbeddedSettings(data=Path(data), log_bytes=1 << 30)) as runtime:
            await runtime.segments.create_segment(_LOGGED)
            writer = UUID(int=1)
            await runtime.segments.setup_append(_LOGGED, writer)
            block = event(bytes(record_bytes - 8)) * per_append
            for start in range(0, total // record_bytes, _BATCH_RECORDS):
                await asyncio.gather(
                    *(
                        runtime.segments.append(
                            Append(
                                segment=_LOGGED,
                                writer=writer,
                                data=block,
                                event_count=per_append,
                                event_number=number + per_append - 1,
                                previous=number - 1 if number else NO_EVENT,
                            )
                        )
                        for number in range(start, start + _BATCH_RECORDS, per_append)
                    )
                )
            os._exit(_DIED)

    budgets.store_settings = settings
    asyncio.run(fill())


SCENARIOS: dict[str, Callable[[Bench], None]] = {
    "idle": idle,
    "segments": segments,
    "million": million,
    "parked": parked,
    "unread": unread,
    "liars": liars,
    "stallers": stallers,
    "chunked": chunked,
    "halves": halves,
    "written": written,
    "recovery": recovery,
}
