"""How cases stand, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import UNSET, convert, structs

from penstock.codec.control.cases import CaseRecord, CaseStreamRecord
from penstock.codec.control.erasures import ErasureRecord, ErasureState
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.erasure.case_search import holds_of_erasure
from penstock.controller.erasure.erasures import Erasures
from penstock.controller.grace.left_tables import all_left_tables
from penstock.controller.metadata import stored
from penstock.core.cases.case import concerns, is_overdue, matcher_of
from penstock.core.cases.progress import erasure_id, is_searched
from penstock.model.answers.erasure import (
    CaseDefect,
    CaseEnd,
    CaseHold,
    CaseProgress,
    CaseTable,
    ErasureCase,
    TableConfirmation,
)
from penstock.model.errors import NotFoundError, PenstockError
from penstock.model.names import StreamName
from penstock.ports.data.tables import KEY_ABSENT


class CaseAnswers:
    """Reads records of cases, and remembers what passes report: ``progress``, and ``failures``, by case."""

    def __init__(self, ctx: Context, erasures: Erasures) -> None:
        self._ctx = ctx
        self._erasures = erasures
        self.progress: dict[str, CaseProgress] = {}
        self.failures: dict[str, str] = {}

    def failed(self, case: str, error: Exception) -> None:
        """Note why a pass ended."""
        self.failures[case] = str(error) if isinstance(error, PenstockError | OSError) else repr(error)

    async def streams(self, case: str) -> Sequence[CaseStreamRecord]:
        """How far the case is, in each stream that it has searched."""
        return list((await self._by_stream(case)).values())

    async def _by_stream(self, case: str) -> dict[StreamName, CaseStreamRecord]:
        found: dict[StreamName, CaseStreamRecord] = {}
        prefix = keys.case_streams(case)
        async for entry in self._ctx.metadata.scan_all(prefix):
            name = self._ctx.set_aside.stream(entry, prefix)
            record = self._ctx.set_aside.read(entry, CaseStreamRecord)
            if name is not None and record is not None:
                found[name] = record
        return found

    async def short(self, case: str, record: CaseRecord) -> ErasureCase:
        """The case without its tables."""
        return await self._answer(case, record, with_tables=False)

    async def full(self, case: str, record: CaseRecord) -> ErasureCase:
        """The case with the tables that have copies of its events."""
        return await self._answer(case, record, with_tables=True)

    async def _answer(self, case: str, record: CaseRecord, *, with_tables: bool) -> ErasureCase:
        streams = await self._by_stream(case)
        holds: list[CaseHold] = []
        for name, item in streams.items():
            if item.pending and not record.state.is_final:
                holds += await self._holds(name, item.pending)
        tables = await self._all_tables(case, record, streams) if with_tables else ()
        return ErasureCase(
            case=case,
            state=record.state.value,
            targets=record.targets,
            looked_for=matcher_of(record.subject, self._ctx.settings.erasure_key or b"unknown").looked_for(),
            who=record.who,
            why=record.why,
            identity=UNSET if record.identity is None else record.identity,
            opened_ms=record.opened_ms,
            due_ms=record.due_ms,
            is_overdue=is_overdue(record.state, due_ms=record.due_ms, now_ms=self._ctx.clock.now_ms()),
            events=sum(item.events for item in streams.values()),
            bytes=sum(item.bytes for item in streams.values()),
            late=sum(item.late for item in streams.values()),
            erasures=[one for name, item in streams.items() for one in await self._erasures_of(case, name, item)],
            performed_ms=record.performed_ms,
            verified_ms=record.verified_ms,
            holds=holds,
            tables=tables,
            defects=[one for name, item in streams.items() for one in _defects(name, item)],
            ended=None if record.ended is None else convert(record.ended, CaseEnd),
            waits_for=self.failures.get(case, UNSET),
            progress=self.progress.get(case, UNSET),
        )

    async def _holds(self, name: StreamName, erasure: str) -> Sequence[CaseHold]:
        try:
            return holds_of_erasure(name, await self._erasures.get(erasure))
        except NotFoundError:
            return []

    async def _all_tables(
        self, case: str, record: CaseRecord, streams: Mapping[StreamName, CaseStreamRecord]
    ) -> Sequence[CaseTable]:
        """The tables with copies of the case's streams, and (until it has ended) those that deleted streams have left
        behind unsearched."""
        found = {
            (one.stream, one.table): one
            for name, item in streams.items()
            for one in await self._tables(case, name, item)
        }
        for stated in record.confirmed:
            place = (stated["stream"], stated["table"])
            known = found.get(place, CaseTable(stream=place[0], table=place[1], state="confirmed"))
            confirmed = [*known.confirmed, convert(stated, TableConfirmation)]
            state = "pending" if known.state == "pending" else "confirmed"
            found[place] = structs.replace(known, state=state, confirmed=confirmed)
        for name, _, tables in await self._unsearched(record, streams):
            for table in tables:
                known = found.get((str(name), table), CaseTable(stream=str(name), table=table, state="pending"))
                found[known.stream, table] = structs.replace(known, state="pending")
        return [found[place] for place in sorted(found)]

    async def _unsearched(
        self, record: CaseRecord, streams: Mapping[StreamName, CaseStreamRecord]
    ) -> Sequence[tuple[StreamName, int, Sequence[str]]]:
        """The deleted streams, by name and incarnation, that have left tables behind and that the case has not searched to
        their end, with those tables that nobody has confirmed. None once the case has ended."""
        if record.state.is_final:
            return []
        confirmed = {(item["stream"], item["incarnation"], item["table"]) for item in record.confirmed}
        found: list[tuple[StreamName, int, Sequence[str]]] = []
        async for name, incarnation, left in all_left_tables(self._ctx):
            if not concerns(record.targets, name):
                continue
            if is_searched(await self._settled(streams.get(name)), incarnation, left):
                continue
            found.append(
                (name, incarnation, [one for one in left.tables if (str(name), incarnation, one) not in confirmed])
            )
        return found

    async def is_confirmed(self, case: str, record: CaseRecord, stream: StreamName, table: str) -> bool:
        """Whether somebody has made a statement about the table of the stream."""
        found = await self._all_tables(case, record, await self._by_stream(case))
        return any(one.confirmed for one in found if (one.stream, one.table) == (str(stream), table))

    async def pending_incarnations(self, case: str, record: CaseRecord, stream: StreamName, table: str) -> list[int]:
        """The deleted streams of the name, by incarnation, whose rows in the table are unknown to the case."""
        streams = await self._by_stream(case)
        found = await self._unsearched(record, streams)
        return [incarnation for name, incarnation, tables in found if name == stream and table in tables]

    async def pending_erasures(self, case: str, stream: StreamName, table: str) -> Mapping[str, int]:
        """The erasures of the case that the table lacks, each with the incarnation of its stream."""
        item = (await self._by_stream(case)).get(stream)
        found: dict[str, int] = {}
        for erasure, of in [] if item is None else await self._performed(case, stream, item):
            states = {one.table: one.state for one in await self._erasures.tables.of(of)}
            if states.get(table) == "pending":
                found[erasure] = of.incarnation
        return found

    async def _settled(self, item: CaseStreamRecord | None) -> CaseStreamRecord | None:
        """The record with the erasure under way, if that is done. No pass settles it once the stream is deleted."""
        if item is None or not item.pending or item.reached is None:
            return item
        found = (await self._ctx.metadata.get(keys.erasure(item.pending), ErasureRecord)).value
        is_done = found is not None and found.state is ErasureState.DONE
        return replace(item, searched=item.reached) if is_done else item

    async def _tables(self, case: str, name: StreamName, record: CaseStreamRecord) -> Sequence[CaseTable]:
        """The tables with copies of the stream, and of deleted streams of its name. Without an erasure none has to
        change."""
        lacks: dict[str, list[str]] = {}
        confirmed: dict[str, list[TableConfirmation]] = {}
        for erasure, of in await self._performed(case, name, record):
            for table in await self._erasures.tables.of(of):
                lacking = lacks.setdefault(table.table, [])
                if table.confirmed is not UNSET:
                    confirmed.setdefault(table.table, []).append(table.confirmed)
                elif table.state != "done":
                    lacking.append(erasure)
        return [
            CaseTable(
                stream=str(name),
                table=table,
                state="pending" if lacking else "confirmed" if table in confirmed else "done",
                erasures=lacking,
                confirmed=confirmed.get(table, ()),
            )
            for table, lacking in sorted(lacks.items())
        ]

    async def _performed(
        self, case: str, name: StreamName, record: CaseStreamRecord
    ) -> Sequence[tuple[str, ErasureRecord]]:
        """The erasures of the case in the stream, without those that were withdrawn or never decided: they have erased
        nothing."""
        erasures = await self._erasures_of(case, name, record)
        entries = await self._ctx.metadata.entries([keys.erasure(item) for item in erasures])
        found = [(one, stored(entry, ErasureRecord).value) for one, entry in zip(erasures, entries, strict=True)]
        without = (ErasureState.WITHDRAWN, ErasureState.GATHERING)
        return [(one, of) for one, of in found if of is not None and of.state not in without]

    async def pending_tables(self, case: str, record: CaseRecord) -> Sequence[str]:
        """The tables that lack an erasure of the case, or have rows of a deleted stream that it has not searched."""
        found = await self._all_tables(case, record, await self._by_stream(case))
        return [one.table for one in found if one.state == "pending"]

    async def _erasures_of(self, case: str, name: StreamName, record: CaseStreamRecord) -> Sequence[str]:
        """The erasures of the case in the stream. A crash before one was asked for leaves a number without one."""
        ids = [erasure_id(case, name, number) for number in range(1, record.rounds + 1)]
        entries = await self._ctx.metadata.entries([keys.erasure(item) for item in ids])
        return [item for item, entry in zip(ids, entries, strict=True) if entry.version != KEY_ABSENT]


def _defects(name: StreamName, record: CaseStreamRecord) -> list[CaseDefect]:
    """What the case cannot search."""
    found = [record.skipped] if record.skipped else []
    found += [
        f"events of {name} were truncated before the case searched it; rows of them in table {table} are not searched"
        for table in record.unreached
    ]
    return [CaseDefect(stream=str(name), why=why) for why in found]
