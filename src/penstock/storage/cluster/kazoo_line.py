"""Wraps kazoo, which uses threads, as awaitable calls on one event loop. Nobody else starts, awaits or closes a client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.protocol.states import KazooState, WatchedEvent
from kazoo.retry import KazooRetry

from penstock.model.errors import CoordinatorUnavailableError, InternalError, SessionEndedError
from penstock.ports.offload import Offload
from penstock.storage.machine.clock import boot_seconds

Request = Callable[[KazooClient], Any]
"""Calls a method of the client that ends in ``_async``, or ``commit_async`` of a transaction."""

_RETRY_FIRST_S, _RETRY_MAX_S = 0.05, 0.5  # a leader is elected in about a second: do not come much later
_log = logging.getLogger("penstock.zookeeper")
_kazoo_log = logging.getLogger("penstock.zookeeper.kazoo")
_kazoo_log.setLevel(logging.ERROR)
"""kazoo logs two lines for each attempt to connect, several per second. Set a lower level to see them."""


class LostAnswerError(Exception):
    """No answer will come: the connection was lost after the request may have been sent, or the time is up."""


def new_client(address: str, *, session_s: float) -> KazooClient:
    """A client that is not started. It connects again for as long as it takes, soon after a server is back: kazoo's own
    pauses grow to an hour, so that it would stay away for as long again as ZooKeeper was."""
    retry = KazooRetry(max_tries=-1, delay=_RETRY_FIRST_S, max_delay=_RETRY_MAX_S)
    client = KazooClient(address, timeout=session_s, connection_retry=retry, logger=_kazoo_log)
    client.add_listener(OutageLog(address))
    return client


class OutageLog:
    """A listener of one client: logs a line when an outage of ZooKeeper begins, and one when it ends. Called by kazoo's
    thread. ``steady_s``: seconds of a clock that never jumps."""

    def __init__(self, address: str, *, steady_s: Callable[[], float] = boot_seconds) -> None:
        self._address = address
        self._steady_s = steady_s
        self._since_s: float | None = None

    def __call__(self, state: str) -> None:
        if state == KazooState.SUSPENDED and self._since_s is None:
            self._since_s = self._steady_s()
            _log.warning("connection to ZooKeeper was lost; reconnecting", extra=self._fields())
        elif state == KazooState.CONNECTED and self._since_s is not None:
            away_s, self._since_s = self._steady_s() - self._since_s, None
            _log.warning("ZooKeeper answers again", extra={**self._fields(), "away_s": round(away_s, 1)})

    def _fields(self) -> dict[str, str]:
        return {"address": self._address}


def close_client(client: KazooClient) -> None:
    """End the session and the threads. Blocks."""
    client.stop()
    client.close()


def post_to(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *values: Any) -> None:
    """Call back on the event loop; from any thread. Ignored when the loop is closed: nobody waits any more."""
    try:
        loop.call_soon_threadsafe(callback, *values)
    except RuntimeError:
        if not loop.is_closed():
            raise


async def answer_of(result: Any) -> Any:
    """What kazoo's result holds, once one of kazoo's threads has set it; raises its error. Cancelled: it may still happen."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    result.rawlink(lambda done: post_to(loop, _settle, answer, done))
    return await answer


class KazooLine:
    """A session with ZooKeeper. It connects again by itself until the session has ended; there is never a second one.

    All methods belong to the event loop in which ``connect`` was called. kazoo calls back on threads of its own; what it
    reports is handed over by ``call_soon_threadsafe``, in order. ``name`` is that of the session in errors.
    """

    def __init__(self, address: str, name: str, *, session_s: float, patience_s: float, offload: Offload) -> None:
        self._address = address
        self._name = name
        self._patience_s = patience_s
        self._offload = offload
        self._client = new_client(address, session_s=session_s)
        self._session_s = session_s
        self._connected = asyncio.Event()
        self._ended = asyncio.Event()
        self._moved = asyncio.Event()

    async def connect(self) -> None:
        """Begin the session. Raises CoordinatorUnavailableError if no server answers in time; the line is closed then."""
        self._loop = asyncio.get_running_loop()
        self._learn_session_length()
        self._client.add_listener(lambda state: self.post(self._note, state))
        try:
            self._client.start_async()
            await self.until_connected(self._loop.time() + self._patience_s)
        except BaseException:
            await self.close()
            raise

    @property
    def session_s(self) -> float:
        """The session length in seconds that the server granted, which may differ from the one requested."""
        return self._session_s

    @property
    def is_ended(self) -> bool:
        return self._ended.is_set()

    async def ended(self) -> None:
        await self._ended.wait()

    def end(self) -> None:
        """Record that the session has ended."""
        self._ended.set()
        self._connected.clear()
        self._moved.set()

    async def until_connected(self, deadline: float) -> None:
        """Wait for a server until the deadline, in the loop's time. Raises CoordinatorUnavailableError,
        SessionEndedError."""
        self._moved.clear()
        while not self._connected.is_set():
            self.check_open()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._moved.wait()
            except TimeoutError:
                raise CoordinatorUnavailableError("ZooKeeper does not answer", address=self._address) from None
            self._moved.clear()
        self.check_open()

    def check_open(self) -> None:
        """Raise SessionEndedError after the end of the session."""
        if self._ended.is_set():
            raise SessionEndedError("the session with ZooKeeper has ended", session=self._name)

    async def call(self, request: Request, deadline: float) -> Any:
        """Send a request and wait for its answer. Raises LostAnswerError, SessionEndedError, and errors of kazoo that
        are answers. Cancelled: it may still be sent."""
        self.check_open()
        try:
            async with asyncio.timeout_at(deadline):
                return await answer_of(request(self._client))
        except (ConnectionLoss, ConnectionClosedError, TimeoutError) as error:
            self.check_open()
            raise LostAnswerError(str(error)) from error
        except SessionExpiredError:
            self.end()
            self.check_open()
            raise InternalError("a session ended and is open") from None

    def post(self, callback: Callable[..., object], *values: Any) -> None:
        """As ``post_to`` the line's own loop."""
        post_to(self._loop, callback, *values)

    def watcher(self, changed: asyncio.Event) -> Callable[[WatchedEvent], None]:
        """A watch for kazoo that sets the event. kazoo calls it once: for a change, or a lost connection."""
        return lambda _: self.post(changed.set)

    async def close(self) -> None:
        """End the session and the threads. ZooKeeper deletes its registrations at once if it hears of it."""
        self.end()
        await self._offload.run(lambda: close_client(self._client))

    def _note(self, state: str) -> None:
        if state == KazooState.LOST:
            self.end()
        elif not self._ended.is_set():
            if state == KazooState.CONNECTED:
                self._connected.set()
            else:
                self._connected.clear()
            self._moved.set()

    def _learn_session_length(self) -> None:
        """kazoo keeps what the server grants to itself: its connection returns two thirds of it as the time to wait for
        bytes, in milliseconds."""
        connection = self._client._connection
        connect = connection._connect

        def learn(*place: Any) -> Any:
            read_ms, connect_ms = connect(*place)
            self._session_s = read_ms * 1.5 / 1000  # before any request can be answered
            return read_ms, connect_ms

        connection._connect = learn


def refusal(results: Sequence[object]) -> tuple[int, Exception] | None:
    """The first refused change of a transaction, and the reason. None: all were made."""
    for number, result in enumerate(results):
        if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
            return number, result
    return None


def _settle(answer: asyncio.Future[Any], done: Any) -> None:
    if answer.done():
        return
    if done.exception is not None:
        answer.set_exception(done.exception)
    else:
        answer.set_result(done.value)
