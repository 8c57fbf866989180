"""Laws of ``ports.cluster.ledgers.Ledgers``."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from penstock.model.errors import (
    FencedError,
    InvalidArgumentError,
    NotEnoughBookiesError,
    NotFoundError,
    UnavailableError,
)
from penstock.model.ledgers import LedgerSpec
from penstock.ports.cluster.ledgers import Ledgers, LedgerWriter
from penstock.testing.conformance import check
from penstock.testing.conformance.durable_log import refused

ENTRY_MAX_BYTES = 4 << 20
HEADER = b"header"


class LedgerLaws:
    """Subclass and implement ``open``."""

    spec = LedgerSpec(labels=(("law", b"of ledgers"),))

    def open(self) -> AbstractAsyncContextManager[Ledgers]:
        """A client of its own."""
        raise NotImplementedError

    async def law_what_was_acknowledged_is_read_behind_the_header(self) -> None:
        async with self.open() as ledgers:
            writer = await ledgers.create(self.spec, HEADER)
            check(writer.confirmed == 0, "the header is entry 0")
            numbers = await asyncio.gather(*(writer.add([b"%d" % number, b"."]) for number in range(1, 40)))
            check(numbers == list(range(1, 40)), "entries are numbered in call order", numbers=numbers)
            check(await writer.close() == 39, "a ledger ends with its last acknowledged entry")
            check(await writer.close() == 39, "closing may be repeated")
            info = await ledgers.find(writer.ledger)
            check((info.closed, info.last) == (True, 39), "the end is known to all", info=info)
            found = await entries(ledgers, writer, 39)
            check(found == [HEADER] + [b"%d." % number for number in range(1, 40)], "entries are read back")
            check([one async for one in ledgers.read(writer.ledger, 7, 7)] == [(7, b"7.")], "one entry is read")

    async def law_entries_are_acknowledged_in_order(self) -> None:
        order: list[int] = []
        async with self.open() as ledgers:
            writer = await ledgers.create(self.spec, HEADER)

            async def add(size_bytes: int) -> None:
                order.append(await writer.add([bytes(size_bytes)]))

            await asyncio.gather(*(add(300_000 if number % 3 == 0 else 1) for number in range(20)))
            check(order == list(range(1, 21)), "a small entry does not overtake a large one", order=order)

    async def law_parts_may_be_reused_at_once(self) -> None:
        async with self.open() as ledgers:
            writer = await ledgers.create(self.spec, HEADER)
            buffer = bytearray(b"first")
            added = writer.add([buffer])
            buffer[:] = b"other"
            await added
            await writer.close()
            check(await entries(ledgers, writer, 1) == [HEADER, b"first"], "parts are copied")

    async def law_the_largest_entry_is_taken_and_a_larger_one_refused(self) -> None:
        async with self.open() as ledgers:
            writer = await ledgers.create(self.spec, HEADER)
            await refused(_added(writer, bytes(ENTRY_MAX_BYTES + 1)), InvalidArgumentError)
            largest = bytes(range(256)) * (ENTRY_MAX_BYTES // 256)
            await writer.add([largest])
            await writer.add([b"after"])
            await writer.close()
            check(await entries(ledgers, writer, 2) == [HEADER, largest, b"after"], "it is read back")

    async def law_a_takeover_keeps_what_was_acknowledged_and_fences_the_writer(self) -> None:
        async with self.open() as ledgers, self.open() as other:
            writer = await ledgers.create(self.spec, HEADER)
            for number in range(1, 6):
                await writer.add([b"%d" % number])
            info = await other.take_over(writer.ledger)
            check((info.closed, info.last) == (True, 5), "all acknowledged entries are in it", info=info)
            await refused(_added(writer, b"zombie"), FencedError)
            await refused(_added(writer, b"again"), FencedError)
            expected = [HEADER, *(b"%d" % number for number in range(1, 6))]
            check(await entries(other, writer, 5) == expected, "the zombie left no trace")
            check(await other.take_over(writer.ledger) == info, "a ledger that is closed stays as it is")
            check(await writer.close() == 5, "its writer agrees where it ends")

    async def law_a_takeover_under_load_keeps_what_was_acknowledged(self) -> None:
        async with self.open() as ledgers, self.open() as other:
            writer = await ledgers.create(self.spec, HEADER)
            added = [asyncio.ensure_future(writer.add([b"%d" % number])) for number in range(1, 200)]
            info, again = await asyncio.gather(other.take_over(writer.ledger), ledgers.take_over(writer.ledger))
            check(info == again, "two takeovers at once agree", info=info, again=again)
            results = await asyncio.gather(*added, return_exceptions=True)
            acknowledged = [one for one in results if isinstance(one, int)]
            check(acknowledged == list(range(1, len(acknowledged) + 1)), "acknowledged in order")
            check(info.last >= len(acknowledged), "nothing acknowledged is cut off", info=info)
            found = await entries(other, writer, info.last)
            check(found[1:] == [b"%d" % number for number in range(1, info.last + 1)], "entries are whole")

    async def law_a_deleted_ledger_is_not_found(self) -> None:
        async with self.open() as ledgers:
            writer = await ledgers.create(self.spec, HEADER)
            await writer.close()
            await ledgers.delete(writer.ledger)
            await ledgers.delete(writer.ledger)
            await refused(ledgers.find(writer.ledger), NotFoundError)
            await refused(ledgers.take_over(writer.ledger), NotFoundError)
            later = await ledgers.create(self.spec, HEADER)
            check(later.ledger > writer.ledger, "ids are not used again")


class BookieLedgerLaws(LedgerLaws):
    """Laws of ledgers on bookies. Implement ``kill``, too. Each law begins with three bookies that serve."""

    async def kill(self, bookie: str) -> None:
        """End the bookie at once. It may stay registered."""
        raise NotImplementedError

    async def law_labels_are_kept(self) -> None:
        async with self.open() as ledgers:
            writer = await ledgers.create(self.spec, HEADER)
            info = await ledgers.find(writer.ledger)
            check(("law", b"of ledgers") in info.labels, "labels are kept", labels=info.labels)

    async def law_a_dead_bookie_stops_nobody(self) -> None:
        async with self.open() as ledgers, self.open() as other:
            writer = await ledgers.create(self.spec, HEADER)
            await writer.add([b"1"])
            dead = (await ledgers.find(writer.ledger)).bookies[0]
            await self.kill(dead)
            for number in range(2, 30):
                check(await writer.add([b"%d" % number]) == number, "two bookies acknowledge")
            check(list(writer.failed) == [dead], "the dead bookie is named", failed=writer.failed)
            info = await other.take_over(writer.ledger)
            check(info.last == 29, "a ledger is taken over without it", info=info)
            check(len(await entries(other, writer, 29)) == 30, "it is read without it")
            await refused(ledgers.create(self.spec, HEADER), NotEnoughBookiesError)
            two = await other.create(LedgerSpec(copies=2, acks=2), HEADER)
            await two.add([b"on two"])
            check(await two.close() == 1, "a new ledger lies on those that are left")

    async def law_without_a_quorum_nothing_is_acknowledged_or_guessed(self) -> None:
        async with self.open() as ledgers, self.open() as other:
            writer = await ledgers.create(self.spec, HEADER)
            await writer.add([b"1"])
            for dead in (await ledgers.find(writer.ledger)).bookies[:2]:
                await self.kill(dead)
            await refused(_added(writer, b"2"), UnavailableError)
            await refused(_added(writer, b"3"), UnavailableError)
            await refused(other.take_over(writer.ledger), UnavailableError)
            check(not (await other.find(writer.ledger)).closed, "the ledger was not closed")

    async def law_more_copies_than_bookies_are_refused(self) -> None:
        async with self.open() as ledgers:
            check(len(await ledgers.bookies()) == 3, "three bookies serve")
            await refused(ledgers.create(LedgerSpec(copies=4, acks=2), HEADER), NotEnoughBookiesError)


async def _added(writer: LedgerWriter, data: bytes) -> int:
    return await writer.add([data])


async def entries(ledgers: Ledgers, writer: LedgerWriter, last: int) -> list[bytes]:
    """The payloads of entries 0 to ``last``."""
    found = [one async for one in ledgers.read(writer.ledger, 0, last)]
    check([number for number, _ in found] == list(range(last + 1)), "entries come in order")
    return [data for _, data in found]
