"""A server in a thread of this process: real ports, and a clock that a test can move."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.app import embedded, serving
from penstock.app.metrics import disk, streams
from penstock.app.metrics.streams import StreamMetrics
from penstock.app.settings import StandaloneSettings
from penstock.app.standalone import Standalone, open_standalone


class MovedClock:
    """The wall clock, ``ahead_ms`` ahead of this machine's."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


class LiveServer:
    """Serves from entry to ``stop`` or exit. ``sample`` samples the streams now."""

    def __init__(self, settings: StandaloneSettings, patch: pytest.MonkeyPatch, *, trusted: Path | None = None) -> None:
        """``trusted``: the authority of a server with TLS."""
        self._tls = None if trusted is None else ssl.create_default_context(cafile=str(trusted))
        self.clock = MovedClock()
        self._settings = settings
        patch.setattr(embedded, "RealClock", lambda: self.clock)
        patch.setattr(streams, "EVERY_S", 3600.0)
        patch.setattr(disk, "_REST", 0)
        self.samples: list[StreamMetrics] = []

        def metrics(*arguments: Any, **named: Any) -> StreamMetrics:
            self.samples.append(StreamMetrics(*arguments, **named))
            return self.samples[-1]

        patch.setattr(serving, "StreamMetrics", metrics)
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="live server")
        self.loop: asyncio.AbstractEventLoop | None = None
        self.standalone: Standalone | None = None

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        async with open_standalone(self._settings) as self.standalone:
            self._ready.set()
            await self._stop.wait()

    def __enter__(self) -> LiveServer:
        self._thread.start()
        assert self._ready.wait(60)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._thread.is_alive():
            assert self.loop is not None
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(60)
        if self._failure is not None:
            raise self._failure

    @property
    def served(self) -> Standalone:
        assert self.standalone is not None
        return self.standalone

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.served.controller.port}"

    def call(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run in the server's loop. Raises ConnectionError if it has stopped."""
        if self.loop is None or not self._thread.is_alive():
            raise ConnectionError("the server has stopped")
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(60)

    def sample(self) -> None:
        """Sample the streams for metrics now, not only every 30 s."""
        self.call(self.samples[0].sample)

    def scrape(self) -> str:
        """The page. Raises OSError if the server does not answer."""
        scheme = "http" if self._tls is None else "https"
        url = f"{scheme}://localhost:{self.served.http.port}/metrics"
        with urllib.request.urlopen(url, timeout=30, context=self._tls) as reply:
            return str(reply.read().decode())
