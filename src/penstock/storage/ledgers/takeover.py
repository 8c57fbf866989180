"""Takes over the ledger of a dead writer: fence it, find its last entry, close it there."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from penstock.codec.bookie import (
    ENTRY,
    FENCE,
    HIGH_PRIORITY,
    LAST_ENTRY,
    RECOVERY_ADD,
    Code,
    Entry,
    Operation,
    decode_entry,
    encode_add,
    encode_read,
)
from penstock.codec.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from penstock.core.ledgers.placement import choose_bookies
from penstock.core.ledgers.recovery import Quorum, Reply, Step, confirmed_after_fence, judge_code, judge_entry
from penstock.model.errors import CorruptDataError, UnavailableError, UnsupportedError
from penstock.model.values.dataclass import dataclass
from penstock.storage.ledgers.connections import BookieConnections
from penstock.storage.ledgers.metadata import LedgerNodes, closed_at, names_of

APPLICATION = ("application", b"penstock")
"""A label of all our ledgers: they begin with a header on all their bookies."""
_TRIES = 10
"""How many changes of the metadata by other takeovers one takeover survives; one of them ends first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    reply: Reply
    code: int | None = None
    entry: Entry | None = None
    data: bytes = b""


class Takeover:
    """Ends one ledger. Holds nothing between calls of ``run``, which may be repeated after any failure."""

    def __init__(self, ledger: int, *, key: bytes, nodes: LedgerNodes, connections: BookieConnections) -> None:
        self._ledger = ledger
        self._key = key
        self._nodes = nodes
        self._connections = connections

    async def run(self) -> LedgerMetadata:
        """The metadata of the closed ledger. Raises as ``ports.cluster.ledgers.Ledgers.take_over``."""
        for _ in range(_TRIES):
            metadata, version = await self._nodes.read(self._ledger)
            if metadata.state is LedgerState.CLOSED:
                return metadata
            if metadata.ensemble_size != metadata.write_quorum:
                raise UnsupportedError(
                    "ledger spreads its entries over more bookies than it has copies",
                    ledger=self._ledger,
                    bookies=metadata.ensemble_size,
                    copies=metadata.write_quorum,
                )
            if metadata.state is LedgerState.OPEN:
                metadata = replace(metadata, state=LedgerState.IN_RECOVERY)
                marked = await self._nodes.replace(self._ledger, metadata, version)
                if marked is None:
                    continue
                version = marked
            homes = [metadata.ensembles[-1]]
            last, length = await self._find_end(metadata, homes)
            kept = tuple(one for one in metadata.ensembles if one.first_entry < homes[0].first_entry)
            # Other bookies are noted only now: before, another takeover would take their answers for proof.
            closed = closed_at(replace(metadata, ensembles=(*kept, *homes)), last=last, length_bytes=length)
            # Another takeover may have changed the bookies meanwhile. Entries that were added again may then be on
            # other bookies.
            if await self._nodes.replace(self._ledger, closed, version) is not None:
                return closed
        raise UnavailableError("ledger is taken over by several clients at once", ledger=self._ledger, tries=_TRIES)

    async def _find_end(self, metadata: LedgerMetadata, homes: list[Ensemble]) -> tuple[int, int]:
        """The last entry that may have been acknowledged, and the ledger's length with it. Every entry up to it is on
        enough bookies. ``homes``: where entries are added again; others are appended where bookies had to be replaced."""
        quorum = Quorum(copies=metadata.write_quorum, acks=metadata.ack_quorum)
        replies = await self._ask(metadata, LAST_ENTRY)
        fenced = [one.entry.confirmed for one in replies if one.entry is not None]
        nothing = sum(one.reply is Reply.LACKS for one in replies)
        headed = APPLICATION in metadata.custom
        confirmed = confirmed_after_fence(fenced, nothing, quorum, begins_with_header=headed)
        if confirmed is None:
            raise self._undecided("too few bookies are fenced", metadata, LAST_ENTRY, replies)
        last = max(confirmed, metadata.ensembles[-1].first_entry - 1)
        length = await self._length_at(metadata, last)
        while True:
            replies = await self._ask(metadata, last + 1)
            step = judge_entry([one.reply for one in replies], quorum)
            if step is Step.END:
                return last, length
            if step is Step.WAIT:
                raise self._undecided("too few bookies know whether an entry exists", metadata, last + 1, replies)
            found = next(one for one in replies if one.entry is not None)
            await self._add_again(metadata, last + 1, found.data, homes)
            last += 1
            length = found.entry.length_bytes if found.entry is not None else length

    async def _length_at(self, metadata: LedgerMetadata, last: int) -> int:
        if last < 0:
            return 0
        holder = [one for one in metadata.ensembles if one.first_entry <= last][-1]
        replies = await self._ask(replace(metadata, ensembles=(replace(holder, first_entry=0),)), last)
        for one in replies:
            if one.entry is not None:
                return one.entry.length_bytes
        raise self._undecided("no bookie has the last acknowledged entry", metadata, last, replies)

    async def _add_again(self, metadata: LedgerMetadata, entry: int, data: bytes, homes: list[Ensemble]) -> None:
        """The same bytes to all bookies: an entry never gets a second content. If too few take it, others replace those
        that do not."""
        frame = encode_add([data], key=self._key, flags=RECOVERY_ADD | HIGH_PRIORITY)
        key = (Operation.ADD, self._ledger, entry)
        names = homes[-1].bookies
        refused: set[str] = set()
        while True:
            answers = await asyncio.gather(*(self._connections.call(name, key, frame) for name in names))
            codes = [None if one is None else one.code for one in answers]
            taken = codes.count(Code.OK)
            if taken >= metadata.ack_quorum:
                break
            refused |= {name for name, code in zip(names, codes, strict=True) if code != Code.OK}
            spare = [one for one in await self._nodes.bookies() if one.name not in {*names, *refused}]
            if len(spare) < len(names) - taken:
                raise UnavailableError(
                    "too few bookies take a recovered entry",
                    ledger=self._ledger,
                    entry=entry,
                    taken=taken,
                    codes=tuple(codes),
                )
            others = iter(choose_bookies(spare, copies=len(names) - taken))
            names = tuple(next(others).name if name in refused else name for name in names)
        if names != homes[-1].bookies:
            if homes[-1].first_entry == entry:
                homes.pop()
            homes.append(Ensemble(first_entry=entry, bookies=names))

    async def _ask(self, metadata: LedgerMetadata, entry: int) -> list[_Reply]:
        """What each bookie has of ``entry``. All are asked with the fence, because otherwise an entry could still be
        added."""
        return await asyncio.gather(*(self._ask_one(name, entry) for name in names_of(metadata)))

    async def _ask_one(self, name: str, entry: int) -> _Reply:
        flags = 0 if entry == LAST_ENTRY else HIGH_PRIORITY
        frame = encode_read(self._ledger, entry, fence_key=self._key, flags=flags | FENCE)
        answer = await self._connections.call(name, (Operation.READ, self._ledger, entry), [frame])
        if answer is None:
            return _Reply(reply=Reply.UNKNOWN)
        if answer.code == Code.OK and len(answer.body) >= ENTRY.size:
            try:
                found = decode_entry(answer.body, ledger=self._ledger, entry=entry)
            except CorruptDataError:
                return _Reply(reply=judge_code(answer.code), code=answer.code)
            reply = judge_code(answer.code, undamaged=True)
            return _Reply(reply=reply, code=answer.code, entry=found, data=bytes(answer.body))
        return _Reply(reply=judge_code(answer.code), code=answer.code)

    def _undecided(self, why: str, metadata: LedgerMetadata, entry: int, replies: list[_Reply]) -> UnavailableError:
        return UnavailableError(
            f"{why}; the ledger cannot be closed now",
            ledger=self._ledger,
            entry=entry,
            bookies=tuple(names_of(metadata)),
            codes=tuple(one.code for one in replies),
        )
