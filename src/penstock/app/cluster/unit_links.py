"""The store's end of links: which controller reaches which container, and what each sends to the other."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from functools import partial
from typing import Any

from penstock.model.errors import ContainerOfflineError, FencedError, PenstockError, UnavailableError
from penstock.model.values.dataclass import dataclass
from penstock.net.workers.link import Answer, WorkerLink
from penstock.net.workers.tcp_link import Accepted, Greeting
from penstock.net.workers.worker_server import WorkerServer
from penstock.segmentstore.store import SegmentStore

log = logging.getLogger(__name__)

_REPORT_PAUSE_S = 1.0
"""Pause after the controller has refused a report: it is still starting."""


@dataclass(slots=True, eq=False)
class _Unit:
    """An open container. ``term``: the least term that it accepts. ``removals``: those of clients that are in progress."""

    number: int
    store: SegmentStore
    term: int
    server: WorkerServer
    link: WorkerLink | None = None
    link_term: int = 0
    reports: list[asyncio.Task[None]] = field(default_factory=list)
    removals: int = 0


class UnitLinks:
    """Decides which controller may open a link to a container. Each open container has at most one link: that of the
    newest term.

    A controller with a lower term than any seen, or than the cluster had when the container was opened, was deposed. It
    reaches no container.
    """

    def __init__(self, container_of: Callable[[str], int], metrics: Callable[[], Any] = list) -> None:
        """``metrics``: those of the process, as ``Snapshot.to_lists``."""
        self._container_of = container_of
        self._metrics = metrics
        self._units: dict[int, _Unit] = {}
        self._term_seen = 0
        self._numbers = itertools.count()

    def open(self, number: int, store: SegmentStore, *, term: int) -> None:
        """The container can be reached from now on. ``term``: of the cluster, read after its takeover has begun."""
        server = WorkerServer()
        server.serve(store)
        self._units[number] = _Unit(number, store, term, server)

    def close(self, number: int) -> None:
        """The container cannot be reached any more. Its calls in progress fail. Does nothing if it was not open."""
        unit = self._units.pop(number, None)
        if unit is not None:
            self._drop(unit)

    def link_of(self, number: int) -> WorkerLink | None:
        """The current link of a container; None: there is none."""
        unit = self._units.get(number)
        return None if unit is None else unit.link

    async def record_refusals(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Let the active controller write them into the audit log. Raises UnavailableError: it is not connected."""
        link = next((unit.link for unit in self._units.values() if unit.link is not None), None)
        if link is None:
            raise UnavailableError("no controller is connected")
        await link.call("refusals", [dict(entry) for entry in entries])

    def accept(self, greeting: Greeting) -> Accepted:
        """See ``LinkListener``. Raises ContainerOfflineError (not open here), FencedError (a later controller was elected),
        UnavailableError (an earlier link's removals have not ended; try again)."""
        unit = self._units.get(greeting.container)
        if unit is None:
            raise ContainerOfflineError("container is not open in this store", container=greeting.container)
        self._check_term(unit, greeting)
        self._raise_term(greeting.term)
        self._drop(unit)
        if unit.removals:
            # The earlier controller has allowed them. The new one must not decide before they have ended.
            raise UnavailableError(
                "removals that an earlier controller allowed are still in progress; try again",
                container=unit.number,
                removals=unit.removals,
            )
        return Accepted(
            handlers=unit.server.handlers(),
            takers={**unit.server.takers(), "pulse": partial(_answer_pulse, unit), "metrics": self._answer_metrics},
            opened=partial(self._opened, unit, greeting),
        )

    def _answer_metrics(self, answer: Answer) -> None:
        answer(self._metrics())

    def _check_term(self, unit: _Unit, greeting: Greeting) -> None:
        least = max(self._term_seen, unit.term)
        if greeting.term < least:
            raise FencedError(
                "a later controller was elected", controller=greeting.controller, term=greeting.term, least_term=least
            )

    def _raise_term(self, term: int) -> None:
        self._term_seen = max(self._term_seen, term)
        for unit in self._units.values():
            if unit.link is not None and unit.link_term < self._term_seen:
                self._drop(unit)

    def _opened(self, unit: _Unit, greeting: Greeting, link: WorkerLink) -> None:
        """The link is open. Since it was accepted, the container may have been closed, or another link accepted."""
        try:
            if self._units.get(unit.number) is not unit:
                raise ContainerOfflineError("container is not open in this store", container=unit.number)
            self._check_term(unit, greeting)
        except PenstockError as error:
            log.info("new link is closed at once", extra={"container": unit.number, "reason": str(error)})
            link.abort()
            return
        self._drop(unit)
        unit.link, unit.link_term = link, greeting.term
        reports: tuple[Awaitable[None], ...] = (
            _repeat(link, lambda: unit.server.report_limits(lambda met: link.call("limits_reached", met))),
            _repeat(link, lambda: unit.server.report_rates(lambda found: link.call("rates_reported", found))),
        )
        unit.reports = [asyncio.ensure_future(one) for one in reports]
        link.closed.add_done_callback(lambda _: self._drop(unit) if unit.link is link else None)
        log.info(
            "controller is connected",
            extra={"container": unit.number, "controller": greeting.controller, "term": greeting.term},
        )

    def _drop(self, unit: _Unit) -> None:
        link, unit.link = unit.link, None
        for task in unit.reports:
            task.cancel()
        unit.reports = []
        if link is not None:
            link.abort()

    @asynccontextmanager
    async def guard(self, segment: str, offset: int | None) -> AsyncIterator[None]:
        """The removal guard of the active controller; see ``net.wire.requests.RemovalGuard``. Raises what it raises, and
        UnavailableError: no controller is connected."""
        number = self._container_of(segment)
        unit = self._units.get(number)
        if unit is None:
            raise ContainerOfflineError("container is not open in this store", container=number)
        link = unit.link
        if link is None:
            raise UnavailableError(
                "no controller is connected to this container, and a removal needs its permission; try again",
                segment=segment,
                container=number,
            )
        removal = next(self._numbers)
        unit.removals += 1
        try:
            await link.call("begin_removal", removal, segment, offset)
            yield
        finally:
            unit.removals -= 1
            # If the link has ended, the controller ends all removals of this container itself.
            if link.is_open:
                link.start(_ignore, "end_removal", removal)


async def _repeat(link: WorkerLink, report: Callable[[], Awaitable[None]]) -> None:
    """Report as long as the link is open."""
    while link.is_open:
        try:
            await report()
        except PenstockError as error:
            log.warning("controller refused a report", extra={"line": link.name, "reason": str(error)})
            await asyncio.sleep(_REPORT_PAUSE_S)


def _answer_pulse(unit: _Unit, answer: Answer) -> None:
    """Answer a heartbeat with the functions that do not work now."""
    answer(dict(unit.store.not_ready()))


def _ignore(_: object) -> None:
    """Report the end of a removal. No caller waits for an answer."""
