"""The server's side of the link to one worker: the current link, and calls that wait for it."""

from __future__ import annotations

import asyncio
from copy import copy
from typing import Any

from penstock.model.errors import ContainerOfflineError, NotConnectedError, PenstockError
from penstock.net.workers.link import Answer, LinkDownError, WorkerLink

PATIENCE_S = 30.0
"""How long a call waits for a worker that is down, unless its caller sets an earlier deadline."""


class WorkerLine:
    """Calls to the worker ``number``, whichever process currently runs it.

    Calls that were never sent wait for the next process. So do repeatable calls whose process died, or stopped because
    it could not write. Other calls then raise NotConnectedError: they may or may not have happened.
    """

    def __init__(self, number: int, *, patience_s: float = PATIENCE_S) -> None:
        self.number = number
        self._patience_s = patience_s
        self._link: WorkerLink | None = None
        self._changed: asyncio.Future[None] | None = None
        self._failure: PenstockError | None = None
        self._absent: PenstockError | None = None

    @property
    def link(self) -> WorkerLink | None:
        """The current link, or None while the worker is down."""
        return self._link if self._link is not None and self._link.is_open else None

    def attach(self, link: WorkerLink | None) -> None:
        """Reach the worker over ``link`` from now on; None: it is down."""
        self._link = link
        self._wake()

    def give_up(self, failure: PenstockError) -> None:
        """The worker will not restart: all calls raise copies of ``failure``. A single one would collect the tracebacks of
        all callers, and keep their arguments alive."""
        self._link = None
        self._failure = failure
        self._wake()

    def refuse(self, reason: PenstockError | None) -> None:
        """While the worker is down, calls raise copies of ``reason`` at once. None: they wait for it."""
        self._absent = reason
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)

    async def call(self, method: str, *arguments: object, repeat: bool) -> Any:
        """The worker's answer. Raises what the worker raises; NotConnectedError, see above."""
        refused: WorkerLink | None = None
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + self._patience_s
        while True:
            link = await self._up(refused, deadline)
            try:
                return await link.call(method, *arguments)
            except NotConnectedError as error:
                if not repeat and not isinstance(error, LinkDownError):
                    raise
            except ContainerOfflineError as error:
                # The worker stops, and another process recovers its data: for callers, the store is briefly
                # unavailable.
                if not repeat:
                    raise NotConnectedError("worker has stopped", worker=self.number, reason=str(error)) from error
            refused, now = link, loop.time()
            if now - began > self._patience_s:
                # A long attempt, such as a waiting read, found the worker alive: the waiting time starts again.
                deadline = now + self._patience_s
            began = now

    async def _up(self, refused: WorkerLink | None, deadline: float) -> WorkerLink:
        """The link, once there is one other than ``refused``."""
        while True:
            if self._failure is not None:
                raise copy(self._failure)
            link = self.link
            if link is not None and link is not refused:
                return link
            if link is None and self._absent is not None:
                raise copy(self._absent)
            if self._changed is None:
                self._changed = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.shield(self._changed)
            except TimeoutError:
                raise NotConnectedError("worker is down", worker=self.number, patience_s=self._patience_s) from None

    def start(self, answer: Answer, method: str, *arguments: object) -> None:
        """Send now; ``answer`` is called once, later, also where the worker is down."""
        link = self.link
        if link is None:
            failure = self._failure or self._absent
            error = NotConnectedError("worker is down", worker=self.number) if failure is None else copy(failure)
            asyncio.get_running_loop().call_soon(answer, error)
            return
        link.start(answer, method, *arguments)
