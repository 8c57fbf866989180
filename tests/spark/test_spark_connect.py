from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.model.errors import ConflictError, InternalError, NotConnectedError, StorageFullError, TruncatedError
from penstock.net.dial.checking import check_listens
from penstock.spark import connect
from penstock.spark.connect import Link, Services, close_links, dial, link
from penstock.spark.reasons import readable, reason
from penstock.spark.source import PenstockSource
from penstock.testing.server import free_ports
from penstock.testing.simulation.machine.loop import SimLoop


class Dialler:
    """A server that is away for the first ``away`` calls; counts what was opened and closed."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.opened = self.closed = 0

    async def __call__(self, address: str) -> Services:
        self.opened += 1

        async def close() -> None:
            self.closed += 1

        return Services(cast(Any, self), cast(Any, address), close)

    async def call(self, services: Services) -> str:
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise NotConnectedError("server is away")
        return cast(str, services.segments)


def test_a_question_outlasts_a_server_that_is_away_and_dials_anew() -> None:
    server = Dialler(away=2)
    found = Link(server, "here:1")
    assert found.ask(server.call) == "here:1"
    assert (server.opened, server.closed) == (3, 2)
    assert found.ask(server.call) == "here:1"
    found.close()
    assert (server.opened, server.closed) == (3, 3)


def test_a_full_disk_is_reported_within_seconds_except_to_a_query_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = SimLoop(1)
    found = Link(Dialler(away=0), "here:1")
    monkeypatch.setattr(found, "_run", loop.run)  # in virtual time

    async def call(services: Services) -> None:
        raise StorageFullError("disk is full")

    for named, least_s, most_s in (({}, 0.5, 3), ({"full_s": connect.RETRY_S}, 25, 31)):
        began = loop.time()
        with pytest.raises(StorageFullError):
            found.ask(call, **named)
        assert least_s < loop.time() - began < most_s


def test_what_is_not_safe_to_repeat_is_not_repeated() -> None:
    server = Dialler(away=1)
    found = Link(server, "here:1")
    with pytest.raises(NotConnectedError):
        found.run(server.call)
    assert found.run(server.call) == "here:1"
    found.close()


def test_a_link_blocks_inside_a_running_loop() -> None:
    server = Dialler(away=1)
    found = Link(server, "here:1")

    async def cell() -> None:
        assert found.ask(server.call) == "here:1"
        assert found.run(server.call) == "here:1"
        server.away = 1
        with pytest.raises(NotConnectedError):
            found.run(server.call)

    asyncio.run(cell())
    # One connection serves calls inside and outside of a loop.
    assert found.ask(server.call) == "here:1"
    assert server.opened == 3

    async def last_cell() -> None:
        assert found.run(server.call) == "here:1"
        found.close()

    asyncio.run(last_cell())
    assert (server.opened, server.closed) == (3, 3)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests were started in the background, with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_call_inside_a_running_loop_cancels_its_work() -> None:
    server = Dialler(away=0)
    found = Link(server, "here:1")
    ended: list[str] = []

    async def long(services: Services) -> None:
        try:
            # A signal just before the main thread begins to wait is noticed only after the wait, as in all of Python.
            await asyncio.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(30)
        finally:
            ended.append("long")

    loop = asyncio.new_event_loop()  # not asyncio.run, which takes SIGINT over; a kernel's loop leaves it to Python

    async def cell() -> None:
        with pytest.raises(KeyboardInterrupt):
            found.run(long)
        assert ended == ["long"]
        assert found.run(server.call) == "here:1"
        found.close()

    loop.run_until_complete(cell())
    loop.close()


def test_a_link_leaves_the_event_loop_of_its_thread_alone() -> None:
    own = asyncio.new_event_loop()
    asyncio.set_event_loop(own)
    try:
        server = Dialler(away=0)
        found = Link(server, "here:1")
        assert found.run(server.call) == "here:1"
        assert asyncio.get_event_loop() is own
        found.close()
        assert asyncio.get_event_loop() is own
    finally:
        asyncio.set_event_loop(None)
        own.close()


def test_other_errors_keep_the_connection() -> None:
    server = Dialler(away=0)
    found = Link(server, "here:1")

    async def refuse(services: Services) -> None:
        raise ConflictError("no")

    with pytest.raises(ConflictError):
        found.ask(refuse)
    assert (server.opened, server.closed) == (1, 0)
    found.close()


def test_a_process_keeps_one_link_for_each_store() -> None:
    server = Dialler(away=0)
    try:
        assert link(server, "here:1") is link(server, "here:1")
        assert link(server, "here:1") is not link(server, "here:2")
    finally:
        close_links()


def test_what_spark_pickles_holds_no_connection() -> None:
    source = pickle.loads(pickle.dumps(PenstockSource({"path": "plant/s"})))
    assert source._connector() is dial


def test_spark_gets_one_line_and_no_cause() -> None:
    @readable
    def fail() -> None:
        try:
            raise OSError("deep inside")
        except OSError as error:
            raise TruncatedError("data is gone", segment=7, start_offset=9) from error

    with pytest.raises(TruncatedError) as caught:
        fail()
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert len(caught.traceback) == 2


def test_a_broken_invariant_keeps_its_traceback() -> None:
    @readable
    def fail() -> None:
        try:
            raise KeyError("x")
        except KeyError as error:
            raise InternalError("broken") from error

    with pytest.raises(InternalError) as caught:
        fail()
    assert isinstance(caught.value.__cause__, KeyError)


def test_errors_of_a_group_are_retried_and_reported_as_one() -> None:
    server = Dialler(away=2)
    found = Link(server, "here:1")

    async def several(services: Services) -> str:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(server.call(services)) for _ in range(2)]
        return asked[0].result()

    assert found.ask(several) == "here:1"
    assert server.opened == 2

    async def refused(services: Services) -> None:
        raise ExceptionGroup("a", [NotConnectedError("away"), ExceptionGroup("b", [ConflictError("no")])])

    with pytest.raises(ConflictError) as caught:
        found.ask(refused)
    assert caught.value.__suppress_context__
    found.close()


def test_patience_of_a_link_and_of_its_connection_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "RETRY_S", 1.0)
    monkeypatch.setattr(connect, "ATTEMPT_S", 0.5)
    found = Link(dial, f"127.0.0.1:{free_ports(1)[0]}")

    async def nothing(services: Services) -> None: ...

    began = time.monotonic()
    with pytest.raises(NotConnectedError) as caught:
        found.ask(nothing)
    assert time.monotonic() - began < 10
    assert caught.value.fields["waited_s"] == 1.0
    found.close()


def test_only_the_first_connection_of_a_sink_in_a_driver_is_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocks = tmp_path / "blockmgr-1"
    blocks.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{blocks},{tmp_path / 'blockmgr-2'}")
    monkeypatch.setitem(cast(Any, check_listens).__kwdefaults__, "wait_s", 0.0)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def sink(at: str = address) -> None:
            # Spark makes each in a process of its own.
            with closing(Link(dial, at)) as one:
                one.served_first()

        for _ in range(2):
            with pytest.raises(NotConnectedError, match="nothing listens"):
                sink()
        server.listen()
        sink()
    sink()  # the server restarts
    # Another server, and another driver, begin anew.
    with pytest.raises(NotConnectedError):
        sink(f"127.0.0.1:{free_ports(1)[0]}")
    (tmp_path / "blockmgr-3").mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "blockmgr-3"))
    with pytest.raises(NotConnectedError):
        sink()


@pytest.mark.parametrize("given", [None, "", "{tmp}", "{tmp}/blockmgr-gone"])
def test_a_sink_that_cannot_remember_its_first_connection_waits_as_ever(
    given: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if given is None:
        monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    else:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", given.format(tmp=tmp_path))
    with closing(Link(dial, f"127.0.0.1:{free_ports(1)[0]}")) as one:
        assert one.served_first() is one


def test_the_reason_is_found_in_a_group_of_exceptions() -> None:
    group = ExceptionGroup(
        "unhandled errors in a TaskGroup", [ExceptionGroup("x", [NotConnectedError("away", port=7)])]
    )
    text = "".join(traceback.format_exception(group))
    assert "  | penstock.model.errors.NotConnectedError" in text
    plain = "penstock.model.errors.NotConnectedError: away. port=7 SQLSTATE: 38000\n"
    assert reason(RuntimeError(plain)) == "NotConnectedError: away. port=7"
    assert reason(RuntimeError(text)) == "NotConnectedError: away. port=7"


def test_the_reason_is_found_in_what_spark_raises() -> None:
    raised = RuntimeError(
        "[STREAM_FAILED] Traceback (most recent call last):\n  File x\n"
        "penstock.model.errors.TruncatedError: data is gone. segment=7 start_offset=9\n SQLSTATE: XXKST"
    )
    assert reason(raised) == "TruncatedError: data is gone. segment=7 start_offset=9"
    assert reason(TruncatedError("data is gone", start_offset=9)) == "TruncatedError: data is gone. start_offset=9"
    assert reason(RuntimeError("something else")) is None
