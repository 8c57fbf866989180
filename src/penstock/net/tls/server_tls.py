"""The current certificate of a server. A new one is taken from the files without a restart."""

from __future__ import annotations

import asyncio
import logging
import ssl
from types import TracebackType
from typing import Self

from penstock.model.errors import InvalidArgumentError
from penstock.net.tls.certificates import Alpn, load_tls, read_files
from penstock.net.tls.settings import TlsSettings
from penstock.ports.clock import Clock
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

POLL_S = 5.0
_SETTLE_S = 1.0
"""From the first change to the reload: a certificate and its key are replaced one after the other."""
_DAY_MS = 86_400_000
_WARN_MS = 30 * _DAY_MS
_WARN_SHARE = 3
"""A certificate of a few days is renewed often, so it is late only in the last third of its life."""


class ServerTls:
    """The contexts of the ports of one process, from entry to exit. Between, the files are looked at every ``poll_s``.

    Files with which no client could connect change nothing: the server keeps the certificate that it has, and
    ``problem`` has the reason.
    """

    def __init__(self, settings: TlsSettings, *, clock: Clock, telemetry: Telemetry, poll_s: float = POLL_S) -> None:
        """Load the files. Raises InvalidArgumentError, which names the file and what to do."""
        self.settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self._poll_s = poll_s
        self._loaded = load_tls(settings, now_ms=clock.now_ms())
        self._seen = self._stamp()
        self._problem: str | None = None
        self._warned_at_ms = 0
        self._watching: asyncio.Task[None] | None = None
        self._report()

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch(), name="TLS files")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    def now_ms(self) -> int:
        """The wall clock by which certificates expire."""
        return self._clock.now_ms()

    def context(self, alpn: Alpn) -> ssl.SSLContext:
        """The context for a connection that is accepted now."""
        return self._loaded.contexts[alpn]

    @property
    def problem(self) -> str | None:
        """Why the files cannot be used, or how the current certificate is about to end; None if all is well."""
        if self._problem is not None:
            return self._problem
        left_ms = self._loaded.not_after_ms - self._clock.now_ms()
        if self._is_late(left_ms):
            return f"the certificate expires in {max(0, left_ms // _DAY_MS)} days: {self._loaded.subject}"
        return None

    @property
    def failure(self) -> str | None:
        """Why no client can connect now, or None."""
        if self._clock.now_ms() > self._loaded.not_after_ms:
            return f"the certificate has expired: {self._loaded.subject}"
        return None

    def reload(self) -> bool:
        """Look at the files now. Returns whether a new certificate is in use."""
        self._seen = self._stamp()
        try:
            if read_files(self.settings) == self._loaded.contents and self._problem is None:
                return False
            found = load_tls(self.settings, now_ms=self._clock.now_ms())
        except InvalidArgumentError as error:
            self._refuse(str(error))
            return False
        changed = found.contents != self._loaded.contents
        self._loaded, self._problem = found, None
        self._report()
        if changed:
            self._telemetry.add("tls_reloads", 1, ("ok",))
            log.info("TLS files were reloaded", extra={"certificate": found.subject})
        return changed

    def _refuse(self, reason: str) -> None:
        if reason != self._problem:
            self._telemetry.add("tls_reloads", 1, ("refused",))
            log.error("TLS files were not reloaded; the old certificate stays in use", extra={"reason": reason})
        self._problem = reason
        self._report()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            # Files that were refused are read again each time: a chmod is no change of a file's content.
            if self._problem is not None or self._stamp() != self._seen:
                await asyncio.sleep(_SETTLE_S)
                self.reload()
            self._report()

    def _stamp(self) -> tuple[object, ...]:
        """A value that differs when a file may have changed."""
        found: list[object] = []
        for path in self.settings.files:
            try:
                status = path.stat()
            except OSError as error:
                found.append(type(error))
            else:
                found.append((status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode))
        return tuple(found)

    def _is_late(self, left_ms: int) -> bool:
        loaded = self._loaded
        return left_ms < min(_WARN_MS, (loaded.not_after_ms - loaded.not_before_ms) // _WARN_SHARE)

    def _report(self) -> None:
        loaded, now_ms = self._loaded, self._clock.now_ms()
        self._telemetry.gauge("certificate_expiry_time_seconds", loaded.not_after_ms / 1000)
        self._telemetry.gauge("certificate_refused", self._problem is not None)
        left_ms = loaded.not_after_ms - now_ms
        if self._is_late(left_ms) and now_ms - self._warned_at_ms >= _DAY_MS:
            self._warned_at_ms = now_ms
            log.warning(
                "the certificate expires soon; renew it, and the server takes the new one by itself",
                extra={"certificate": loaded.subject, "days": left_ms // _DAY_MS},
            )
