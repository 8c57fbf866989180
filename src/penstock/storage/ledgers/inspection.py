"""Looks into ledgers that others write, without fencing them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from penstock.codec.bookie import LAST_ENTRY, Code, Entry, Operation, decode_entry, encode_read
from penstock.codec.ledger_metadata import LedgerMetadata, ensemble_of
from penstock.core.ledgers.recovery import Quorum, Reply, judge_code
from penstock.model.errors import CorruptDataError, NotConnectedError, UnavailableError
from penstock.model.ledgers import Bookie
from penstock.model.values.dataclass import dataclass
from penstock.ports.cluster.nodes import Nodes
from penstock.storage.ledgers.connections import BookieConnections, Connect, connect_tcp
from penstock.storage.ledgers.limits import LedgerLimits
from penstock.storage.ledgers.metadata import LedgerNodes


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredBookies:
    """``writable``: those that take new entries. ``read_only``: names of the others that answer."""

    writable: tuple[Bookie, ...]
    read_only: tuple[str, ...]

    @property
    def available(self) -> Collection[str]:
        """Names of those that can be read from."""
        return {*(one.name for one in self.writable), *self.read_only}


@asynccontextmanager
async def open_inspection(
    nodes: Nodes, *, root: str, limits: LedgerLimits | None = None, connect: Connect = connect_tcp
) -> AsyncIterator[LedgerInspection]:
    """Look into the ledgers of the BookKeeper whose metadata are below ``root``, which need not exist."""
    ledger_nodes = LedgerNodes(nodes, root)
    connections = BookieConnections(ledger_nodes.locate, connect, limits or LedgerLimits())
    try:
        yield LedgerInspection(ledger_nodes, connections)
    finally:
        connections.close()


class LedgerInspection:
    """Opened by ``open_inspection``. Every call may raise UnavailableError. Nothing is changed anywhere."""

    def __init__(self, nodes: LedgerNodes, connections: BookieConnections) -> None:
        self.nodes = nodes
        self._connections = connections

    async def bookies(self) -> RegisteredBookies:
        """Those that are registered now. Raises NotFoundError: no BookKeeper is at the root."""
        return RegisteredBookies(
            writable=tuple(await self.nodes.bookies()), read_only=tuple(await self.nodes.read_only())
        )

    async def silent(self, names: Sequence[str]) -> list[str]:
        """Those of the bookies that accept no connection, sorted."""

        async def answers(name: str) -> bool:
            try:
                await self._connections.get(name)
            except NotConnectedError:
                return False
            return True

        found = await asyncio.gather(*map(answers, names))
        return sorted(name for name, is_there in zip(names, found, strict=True) if not is_there)

    async def metadata(self, ledger: int) -> LedgerMetadata:
        """Raises NotFoundError, CorruptDataError, VersionTooNewError."""
        return (await self.nodes.read(ledger))[0]

    async def last(self, ledger: int, metadata: LedgerMetadata) -> Entry:
        """The newest entry of a ledger that may be open, as far as its bookies have it. It may not be acknowledged yet.
        Raises UnavailableError: no bookie has one."""
        names = metadata.ensembles[-1].bookies
        found = await asyncio.gather(*(self._read(name, ledger, LAST_ENTRY) for name in names))
        entries = [one for one in found if one is not None]
        if not entries:
            raise UnavailableError("no bookie of the ledger answers", ledger=ledger, bookies=names)
        return max(entries, key=lambda one: one.entry)

    async def entry(self, ledger: int, metadata: LedgerMetadata, number: int) -> Entry:
        """One entry. Raises UnavailableError: no bookie that answers has it undamaged."""
        names = ensemble_of(metadata.ensembles, number).bookies
        for name in names:
            found = await self._read(name, ledger, number)
            if found is not None:
                return found
        raise UnavailableError("entry cannot be read now", ledger=ledger, entry=number, bookies=names)

    async def has_no_beginning(self, ledger: int, metadata: LedgerMetadata) -> bool:
        """Whether bookies prove that entry 0 was never acknowledged: so many of them answer that they lack it. A log lists no
        ledger before all bookies have this entry, so nothing else is in such a ledger. Ask after a takeover has failed, which
        has fenced the ledger."""
        key, frame = (Operation.READ, ledger, 0), [encode_read(ledger, 0)]
        names = ensemble_of(metadata.ensembles, 0).bookies
        answers = await asyncio.gather(*(self._connections.call(name, key, frame) for name in names))
        lacking = sum(one is not None and judge_code(one.code) is Reply.LACKS for one in answers)
        return lacking >= Quorum(copies=metadata.write_quorum, acks=metadata.ack_quorum).certain

    async def _read(self, name: str, ledger: int, number: int) -> Entry | None:
        key = (Operation.READ, ledger, number)
        answer = await self._connections.call(name, key, [encode_read(ledger, number)])
        if answer is None or answer.code != Code.OK:
            return None
        try:
            return decode_entry(answer.body, ledger=ledger, entry=number)
        except CorruptDataError:
            return None  # another bookie is asked
