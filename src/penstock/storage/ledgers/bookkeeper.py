"""Ledgers on Apache BookKeeper. Source: docs/design/0062-log-on-bookkeeper.md."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from penstock.codec.bookie import (
    Code,
    Operation,
    decode_entry,
    encode_batch_read,
    encode_read,
    entries_of_batch,
    master_key,
)
from penstock.codec.ledger_metadata import Ensemble, LedgerMetadata, LedgerState, ensemble_of
from penstock.core.ledgers.placement import choose_bookies
from penstock.core.ledgers.recovery import Reply, judge_code
from penstock.model.errors import (
    CorruptDataError,
    FencedError,
    NotConnectedError,
    PenstockError,
    ProtocolError,
    UnavailableError,
    WrongClusterError,
)
from penstock.model.ledgers import Bookie, LedgerInfo, LedgerSpec
from penstock.ports.clock import Clock
from penstock.ports.cluster.nodes import Nodes
from penstock.ports.rng import Rng
from penstock.storage.ledgers.connections import BookieConnection, BookieConnections, Connect, connect_tcp
from penstock.storage.ledgers.limits import LedgerLimits
from penstock.storage.ledgers.metadata import LedgerNodes, names_of
from penstock.storage.ledgers.takeover import APPLICATION, Takeover
from penstock.storage.ledgers.writer import BookKeeperWriter

_log = logging.getLogger(__name__)

_BATCH_ENTRIES = 1000  # entries of one batch read at most
_BATCH_BYTES = 4 << 20
"""Below the largest frame of a bookie, with room for the headers of entries."""


@asynccontextmanager
async def open_ledgers(
    nodes: Nodes,
    *,
    root: str,
    clock: Clock,
    rng: Rng,
    limits: LedgerLimits | None = None,
    connect: Connect = connect_tcp,
    instance: str | None = None,
) -> AsyncIterator[BookKeeperLedgers]:
    """A client of the BookKeeper whose metadata are below ``root``. ``instance``: the INSTANCEID that it must have; None:
    any.

    Raises NotFoundError, UnsupportedError, NotConnectedError, WrongClusterError (another INSTANCEID).
    """
    opened = BookKeeperLedgers(
        LedgerNodes(nodes, root), clock=clock, rng=rng, limits=limits or LedgerLimits(), connect=connect
    )
    found = await opened.nodes.check_layout()
    if instance not in (None, found):
        raise WrongClusterError(
            "this is not the BookKeeper of the cluster, so it does not have the ledgers of the cluster: it was initialised"
            " again, or another one is at this root",
            root=root,
            expected=instance,
            found=found,
        )
    try:
        yield opened
    finally:
        opened.close()


class BookKeeperLedgers:
    """Implements ``ports.cluster.ledgers.Ledgers``."""

    def __init__(
        self, nodes: LedgerNodes, *, clock: Clock, rng: Rng, limits: LedgerLimits, connect: Connect = connect_tcp
    ) -> None:
        self.nodes = nodes
        self._clock = clock
        self._rng = rng
        self._limits = limits
        self._connections = BookieConnections(nodes.locate, connect, limits)
        self._key = master_key(b"")
        self._used: Counter[str] = Counter()
        self._requests = 0

    def close(self) -> None:
        """End all connections. What is in flight fails."""
        self._connections.close()

    async def bookies(self) -> Sequence[Bookie]:
        """As the port says."""
        return await self.nodes.bookies()

    async def create(self, spec: LedgerSpec, header: bytes | Callable[[int], bytes]) -> BookKeeperWriter:
        """As the port says. Bookies are connected first: a dead one stays registered until its session ends."""
        refused: set[str] = set()
        while True:
            chosen, connections = await self._connected(spec, refused)
            try:
                return await self._begin(spec, header, chosen, connections)
            except FencedError as error:
                raise UnavailableError("new ledger was fenced", cause=str(error)) from error
            except UnavailableError as error:
                failed = {name for name, one in zip(chosen, connections, strict=True) if not one.is_open}
                if not failed:
                    raise
                _log.warning(
                    "bookies failed while a ledger was created; trying others",
                    extra={"bookies": sorted(failed), "error": str(error)},
                )
                refused |= failed

    async def _connected(self, spec: LedgerSpec, refused: set[str]) -> tuple[list[str], list[BookieConnection]]:
        """Enough bookies, connected. Adds to ``refused`` those that are not reached. Raises NotEnoughBookiesError."""
        while True:
            known = await self.nodes.bookies()
            resting = self._connections.resting() | refused
            if sum(one.name not in resting for one in known) < spec.copies:
                resting = refused  # rather one that failed a moment ago than none
            self._shuffle(known)
            chosen = choose_bookies(known, copies=spec.copies, refused=resting, used=self._used)
            names = [one.name for one in chosen]
            found = await asyncio.gather(*map(self._connections.get, names), return_exceptions=True)
            connections = [one for one in found if isinstance(one, BookieConnection)]
            if len(connections) == len(names):
                return names, connections
            for name, one in zip(names, found, strict=True):
                if isinstance(one, NotConnectedError):
                    refused.add(name)
                elif isinstance(one, BaseException):
                    raise one

    async def _begin(
        self,
        spec: LedgerSpec,
        header: bytes | Callable[[int], bytes],
        names: Sequence[str],
        connections: Sequence[BookieConnection],
    ) -> BookKeeperWriter:
        metadata = LedgerMetadata(
            write_quorum=spec.copies,
            ack_quorum=spec.acks,
            ensembles=(Ensemble(first_entry=0, bookies=tuple(names)),),
            created_ms=self._clock.now_ms(),
            custom=tuple(sorted({APPLICATION, *spec.labels})),
            token=self._rng.randrange(1 << 62),
        )
        ledger = await self.nodes.new_id()
        await self.nodes.create(ledger, metadata)
        writer = BookKeeperWriter(
            ledger,
            metadata,
            connections,
            key=self._key,
            nodes=self.nodes,
            limits=self._limits,
            on_failure=self._connections.note_failure,
        )
        try:
            await writer.add_header(header if isinstance(header, bytes) else header(ledger))
        except PenstockError:
            writer.stop()
            for name in writer.failed:
                connections[names.index(name)].abort()
            await self.nodes.delete(ledger)
            raise
        self._used.update(names)
        return writer

    async def find(self, ledger: int) -> LedgerInfo:
        """As the port says."""
        metadata, _ = await self.nodes.read(ledger)
        return _info(ledger, metadata)

    async def take_over(self, ledger: int) -> LedgerInfo:
        """As the port says."""
        takeover = Takeover(ledger, key=self._key, nodes=self.nodes, connections=self._connections)
        return _info(ledger, await takeover.run())

    async def delete(self, ledger: int) -> None:
        """As the port says."""
        await self.nodes.delete(ledger)

    async def read(self, ledger: int, first: int, last: int) -> AsyncIterator[tuple[int, bytes]]:
        """As the port says. Batches come from one bookie, as long as it has what it is asked for."""
        metadata, _ = await self.nodes.read(ledger)
        number, names = first, list(names_of(metadata))
        while number <= last:
            ensemble = ensemble_of(metadata.ensembles, number)
            later = [one.first_entry for one in metadata.ensembles if one.first_entry > number]
            end = min([last, *(start - 1 for start in later)])
            found: list[bytes] = []
            if metadata.ensemble_size == metadata.write_quorum:
                names = [name for name in names if name in ensemble.bookies] or list(ensemble.bookies)
                found = await self._read_batch(names[0], ledger, number, end - number + 1)
            if not found:
                holder, data = await self._read_one(metadata, ledger, number)
                found = [data]
                names = [holder, *(name for name in ensemble.bookies if name != holder)]
            for data in found:
                yield number, data
                number += 1

    async def _read_batch(self, name: str, ledger: int, entry: int, count: int) -> list[bytes]:
        """Payloads from ``entry`` on, as many as this bookie has undamaged; none if it does not answer."""
        self._requests += 1
        frame = encode_batch_read(
            ledger,
            entry,
            request_id=self._requests,
            entries_max=min(count, _BATCH_ENTRIES),
            size_max_bytes=_BATCH_BYTES,
        )
        answer = await self._connections.call(name, (Operation.BATCH_READ, ledger, entry), [frame])
        if answer is None or answer.code != Code.OK:
            return []
        found: list[bytes] = []
        try:
            for number, data in enumerate(entries_of_batch(answer)[1], entry):
                found.append(bytes(decode_entry(data, ledger=ledger, entry=number).payload))
        except (CorruptDataError, ProtocolError) as error:
            _log.warning("bookie sent a damaged entry", extra={"bookie": name, "error": str(error)})
        return found[:count]

    async def _read_one(self, metadata: LedgerMetadata, ledger: int, entry: int) -> tuple[str, bytes]:
        """The payload, and the bookie that has it."""
        names = ensemble_of(metadata.ensembles, entry).bookies
        silent: list[str] = []
        for index in range(metadata.write_quorum):
            name = names[(entry + index) % len(names)]
            key = (Operation.READ, ledger, entry)
            answer = await self._connections.call(name, key, [encode_read(ledger, entry)])
            if answer is not None and answer.code == Code.OK:
                try:
                    return name, bytes(decode_entry(answer.body, ledger=ledger, entry=entry).payload)
                except CorruptDataError as error:
                    _log.warning("bookie sent a damaged entry", extra={"bookie": name, "error": str(error)})
            elif answer is None or judge_code(answer.code) is Reply.UNKNOWN:
                silent.append(name)
        if silent:
            raise UnavailableError("entry cannot be read now", ledger=ledger, entry=entry, silent=tuple(silent))
        raise CorruptDataError("entry is lost or damaged on all bookies", ledger=ledger, entry=entry, bookies=names)

    def _shuffle(self, bookies: list[Bookie]) -> None:
        for index in range(len(bookies) - 1, 0, -1):
            other = self._rng.randrange(index + 1)
            bookies[index], bookies[other] = bookies[other], bookies[index]


def _info(ledger: int, metadata: LedgerMetadata) -> LedgerInfo:
    closed = metadata.state is LedgerState.CLOSED
    return LedgerInfo(
        ledger=ledger,
        closed=closed,
        last=metadata.last_entry if closed else -1,
        size_bytes=metadata.length_bytes if closed else 0,
        bookies=tuple(names_of(metadata)),
        labels=metadata.custom,
    )
