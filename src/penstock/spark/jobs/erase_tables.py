"""Apply an erasure to the tables that are subscribers of its stream. Source: docs/how-to/erasure.md."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from msgspec import UNSET

from penstock.client.erasure import AsyncErasures
from penstock.client.retry import retrying
from penstock.core.streams.query_source import TABLE_PREFIX
from penstock.model.errors import InvalidArgumentError, PenstockError, StreamNotFoundError, UnsupportedError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.spark.connect import Connector, Services, dial, link
from penstock.spark.jobs.lake.task import on_spark
from penstock.spark.lake.opening import TableAddress, open_table
from penstock.spark.lake.port import FORMATS, CommittedTable
from penstock.spark.lake.upkeep import erase
from penstock.storage.machine.rng import RealRng

log = logging.getLogger("penstock.spark")

_REASON_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TableErasure:
    """An erasure in one table.

    ``state``: ``pending``: rows may still be there; ``done``. ``why``: why it is pending, if there is a reason. ``rows``
    were deleted with ``files``, by this run.
    """

    table: str
    state: str
    why: str = ""
    rows: int = 0
    files: int = 0

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """How to reach tables: settings of object stores and of the Iceberg catalog, as for the job ``lake``."""

    storage: Mapping[str, str]
    catalog: Mapping[str, str]


def erase_in_tables(
    spark: Any,
    stream: StreamName,
    erasure: str,
    *,
    controller: str,
    settings: TableSettings,
    connector: Connector = dial,
) -> list[TableErasure]:
    """Delete the rows of a completed erasure from all tables of the stream, in all versions and files.

    Safe to repeat: a table that has recorded the erasure is left as it is. A table that cannot be erased is reported as
    pending with the reason, and does not stop the others.

    Raises InvalidArgumentError: the erasure is not done yet. NotFoundError: there is no such erasure.
    """
    server = link(connector, controller).served()

    async def positions(services: Services) -> dict[SegmentId, Any]:
        erasures = AsyncErasures(None, services.segments, services.controller, RealRng())
        if (await erasures.show(erasure)).receipt is None:
            raise InvalidArgumentError("the erasure is not done yet; wait for its receipt", erasure=erasure)
        return dict(await erasures.offsets(erasure))

    erased = {int(segment): offsets for segment, offsets in server.ask(positions).items()}
    found = []
    for name in server.ask(lambda services: _tables_of(services, stream, erasure)):
        try:
            done = erase(_open(name, settings, stream), erasure, erased, run=on_spark(spark))
            server.ask(partial(_note, erasure, name, done.rows))
            found.append(TableErasure(table=name, state="done", rows=done.rows, files=done.deleted))
        except PenstockError as error:
            found.append(TableErasure(table=name, state="pending", why=str(error)))
        except Exception as error:
            # Catalogs, stores and Spark have errors of their own. None of them may keep rows in the other tables.
            log.exception("a table cannot be erased because of an unexpected error", extra={"table": name})
            reason = str(error).strip().partition("\n")[0][:_REASON_CHARS]
            found.append(TableErasure(table=name, state="pending", why=f"{type(error).__name__}: {reason}"))
    return found


async def _note(erasure: str, table: str, rows: int, services: Services) -> None:
    """Record in the store that the table is done: the receipt and its case show it."""
    await retrying(partial(services.controller.erasures.note_table, erasure, table, rows=rows), RealRng())


async def _tables_of(services: Services, stream: StreamName, erasure: str) -> list[str]:
    """The tables with copies of the erased events, as ``FORMAT TABLE``; those of the job ``table`` as a directory.

    Tables that are done are listed as long as they are subscribers. The tables of a deleted stream stay pending.
    """
    try:
        known = await services.controller.subscribers.describe(stream)
    except StreamNotFoundError:
        known = ()
    queries = {item.query or item.owner for item in known}
    tables = (await services.controller.erasures.get(erasure)).tables
    found = () if tables is UNSET else tables
    return [item.table for item in found if item.state == "pending" or TABLE_PREFIX + item.table in queries]


def _open(name: str, settings: TableSettings, stream: StreamName) -> CommittedTable:
    """The table of a registration. Raises UnsupportedError, InvalidArgumentError, AlreadyExistsError."""
    kind, _, target = name.partition(" ")
    if kind not in FORMATS:
        raise UnsupportedError("a table of the latest event of each key cannot be erased; create it again", table=name)
    if kind == "iceberg":
        return _of_stream(open_table(TableAddress(format=kind, target=target, catalog=settings.catalog)), stream, name)
    storage = settings.storage if "://" in target else {}
    return _of_stream(open_table(TableAddress(format=kind, target=target, storage=storage)), stream, name)


def _of_stream(table: CommittedTable, stream: StreamName, name: str) -> CommittedTable:
    state = table.state()
    if state is None:
        raise InvalidArgumentError(
            "the table is missing; if it was deleted, also delete its subscriber", table=name, stream=stream
        )
    if state.definition.get("stream") != str(stream):
        raise InvalidArgumentError("the table has another stream", table=name, stream=state.definition.get("stream"))
    return table
