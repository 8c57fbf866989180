"""Bugs of a cluster, each as a patch of the product: ownership, publication, leases, sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import planted_ledgers

from penstock.app.cluster import election, unit
from penstock.app.cluster.holding import Holding
from penstock.app.cluster.node import StoreNode
from penstock.codec.store import rows as records
from penstock.codec.store.cluster_nodes import LEADER, TERM, Term, decode_node, encode_node
from penstock.model.errors import AlreadyExistsError
from penstock.ports.cluster.coordination import Coordination, Create
from penstock.segmentstore.repair import load
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tiering.catalogue import Catalogue
from penstock.segmentstore.tiering.leases import Leases


def delete_before_publish() -> Any:
    """Chunks are deleted, and the log is truncated, before the record names the catalogue that allows it."""
    return patch.object(Catalogue, "safe", property(lambda self: self._sequence))


def batches_of_a_zombie_count() -> Any:
    """All batches of the catalogue count, whichever epoch wrote them."""
    return patch.object(load, "batches_of", lambda at, epoch: (at.included + 1, at.batch))


def a_cache_is_always_kept() -> Any:
    """Metadata in the directory is used although another store has owned the container since."""

    def is_needed(record: Any, mark: Any, data: Path, *, has_metadata: bool) -> bool:
        return not has_metadata and (bool(record.catalogues) or record.truncated > 0)

    @contextmanager
    def planted() -> Iterator[None]:
        def checked(record: Any, mark: Any, **_: Any) -> None:
            return

        with (
            patch.object(unit, "is_takeover_needed", is_needed),
            patch("penstock.app.replicated.binding.check_record", checked),
        ):
            yield

    return planted()


@contextmanager
def leases_in_rows_only() -> Iterator[None]:
    """A lease is acknowledged before it is in the log, and is not in the catalogue."""

    def logged(self: Leases, operation: Any) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer

    kept = records.CATALOGUED - set(records.TAG_LEASE)
    with patch.object(Leases, "_logged", logged), patch.object(records, "CATALOGUED", kept):
        yield


def answers_without_a_lease() -> Any:
    """A store answers as long as it believes in its session."""

    def answer_check(self: StoreNode) -> Callable[[], bool]:
        return lambda: self._session is not None

    return patch.object(StoreNode, "answer_check", answer_check)


def released_before_it_is_closed() -> Any:
    """A store lets another one have the container while it still serves it."""
    original = Holding._flush

    async def flush(self: Holding, store: SegmentStore) -> None:
        await self._registration.drop()
        await asyncio.sleep(2.0)
        await original(self, store)

    return patch.object(Holding, "_flush", flush)


def a_term_is_used_twice() -> Any:
    """A controller that is elected does not raise the term."""

    async def attempt(at: Coordination, controller: str, unknown: list[Term]) -> Term | None:
        before = decode_node(Term, (await at.read(TERM)).data)
        term = replace(before, controller=controller)
        try:
            await at.multi([Create(LEADER, encode_node(term), ephemeral=True)])
        except AlreadyExistsError:
            return None
        return term

    return patch.object(election, "_attempt", attempt)


OF_THE_LOG = (
    "recovery_without_fence",
    "extend_before_fence",
    "one_bookie_is_believed",
    "closed_at_the_last_sent",
    "late_answers_count",
)
"""Bugs of the log that show in a cluster too. The simulation of the log alone finds the others."""

PLANTED: dict[str, Callable[[], Any]] = {
    one.__name__: one
    for one in (
        delete_before_publish,
        batches_of_a_zombie_count,
        a_cache_is_always_kept,
        leases_in_rows_only,
        answers_without_a_lease,
        released_before_it_is_closed,
        a_term_is_used_twice,
    )
} | {f"log_{name}": planted_ledgers.PLANTED[name] for name in OF_THE_LOG}
