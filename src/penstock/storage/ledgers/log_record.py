"""The record of a log on ledgers, as one opening holds it: changed by compare-and-set only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from penstock.codec.store.container_record import ContainerRecord, decode_record, encode_record
from penstock.core.cluster.ownership import Standing, frozen, is_owner, judge_change, plain_noted
from penstock.model.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    ContainerOfflineError,
    InvalidArgumentError,
    NotConnectedError,
    NotFoundError,
    UnavailableError,
)
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.ports.cluster.nodes import VersionedNodes
from penstock.ports.rng import Rng

_TRIES = 20
"""How many later openings may overtake this one while it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What an opening of a log expects, and what the record names from then on.

    ``uid``: of the expected log; None: any log. ``create``: make the record if it is missing, with ``uid``. ``home`` and
    ``tier``: what the record names from now on; None: no change.
    """

    uid: str | None = None
    create: bool = True
    home: str | None = None
    tier: str | None = None


class HeldRecord:
    """``record`` is what this opening knows. Another opening raises the epoch; then every change fails."""

    def __init__(
        self, nodes: VersionedNodes, path: str, record: ContainerRecord, version: int, clock: Clock | None = None
    ) -> None:
        self.record = record
        self._clock = clock
        self._nodes = nodes
        self._path = path
        self._version = version
        self._lock = asyncio.Lock()

    @classmethod
    async def take(
        cls, nodes: VersionedNodes, path: str, *, rng: Rng, opening: Opening, clock: Clock | None = None
    ) -> HeldRecord:
        """Begin the next epoch. From here on, no earlier opening can change the record. ``clock``: of an opening that may
        write encrypted ledgers.

        Raises, before anybody is fenced: InvalidArgumentError (another log is there), NotFoundError (the record is
        missing, without ``create``), CorruptDataError, VersionTooNewError. UnavailableError: others keep opening it, or
        the coordinator does not answer, and the epoch may have begun.
        """
        owner = str(rng.uuid())
        for _ in range(_TRIES):
            try:
                data, version = await nodes.read(path)
            except NotFoundError:
                if not opening.create:
                    raise
                with suppress(AlreadyExistsError):
                    await nodes.create(path, encode_record(ContainerRecord(uid=opening.uid or str(rng.uuid()))))
                continue
            record = decode_record(data)
            if opening.uid not in (None, record.uid):
                raise InvalidArgumentError(
                    "the log at this path belongs to another store", path=path, uid=record.uid, expected=opening.uid
                )
            held = frozen(record, owner=owner, home=opening.home, tier=opening.tier)
            try:
                return cls(nodes, path, held, await nodes.set(path, encode_record(held), version=version), clock)
            except ConditionFailedError:
                continue
        raise UnavailableError("log is opened by several owners at once", path=path, tries=_TRIES)

    async def change(self, changed: Callable[[ContainerRecord], ContainerRecord]) -> None:
        """Replace the record by ``changed`` of it. One change at a time.

        Raises: ContainerOfflineError: a later opening owns the log. NotConnectedError: the outcome is unknown; repeat,
        the same change is recognized.
        """
        async with self._lock:
            wanted = changed(self.record)
            if self._clock is not None:
                wanted = plain_noted(self.record, wanted, now_ms=self._clock.now_ms())
            try:
                version = await self._nodes.set(self._path, encode_record(wanted), version=self._version)
            except (ConditionFailedError, NotFoundError):
                version = await self._recognize(wanted)
            self.record, self._version = wanted, version

    async def check(self) -> None:
        """Raise ContainerOfflineError if a later opening owns the log. Raises NotConnectedError."""
        found, _ = await self._read()
        if not is_owner(found, self.record.owner):
            raise self._lost(found)

    async def lists(self, ledger: int) -> bool:
        """Whether the record names the ledger now; another opening may own it. Raises NotConnectedError."""
        found, _ = await self._read()
        return found is not None and any(one.ledger == ledger for one in found.ledgers)

    async def _recognize(self, wanted: ContainerRecord) -> int:
        """The version, if the record is as an earlier attempt of ours left it: its answer was lost."""
        found, version = await self._read()
        standing = judge_change(found, wanted)
        if found is None or standing is Standing.DEPOSED:
            raise self._lost(found)
        if standing is Standing.BEHIND:
            self.record, self._version = found, version
            raise NotConnectedError(
                "an earlier change of the log's record took effect late; repeat the call", path=self._path
            )
        return version

    async def _read(self) -> tuple[ContainerRecord | None, int]:
        """The record and its version now. None: it was deleted."""
        try:
            data, version = await self._nodes.read(self._path)
        except NotFoundError:
            return None, -1
        return decode_record(data), version

    def _lost(self, found: ContainerRecord | None) -> ContainerOfflineError:
        why = "record of the log was deleted" if found is None else "log was fenced by a later opening"
        return ContainerOfflineError(why, path=self._path, epoch=self.record.epoch)
