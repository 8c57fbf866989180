"""``penstock rebuild``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.common.options import DATA, SOURCE, TIER2, EndpointOption, InsecureOption
from penstock.app.cli.common.output import ProgressLine, print_json
from penstock.app.cli.common.target import JsonOption
from penstock.app.cli.common.words import NO_SECRETS, moment
from penstock.app.cli.erasure.ledger import KeyOption, LedgerOption, PublicKeyOption, public_keys
from penstock.app.cli.upkeep.scrub import DAMAGE_STATUS, damage_line
from penstock.core.units import counted, format_size

if TYPE_CHECKING:
    from penstock.app.integrity.rebuild import RebuildReport


def rebuild(
    place: Annotated[
        str,
        typer.Option(
            "--source",
            metavar="PLACE",
            help=SOURCE,
            show_default=False,
        ),
    ],
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help=f"{DATA} It must be new or empty.", show_default=False)
    ],
    tier2: Annotated[
        str | None,
        typer.Option("--tier2", metavar="PLACE", help=TIER2, show_default=False),
    ] = None,
    endpoint: EndpointOption = None,
    insecure: InsecureOption = False,
    ledger: LedgerOption = None,
    key: KeyOption = None,
    public_key: PublicKeyOption = None,
    json: JsonOption = False,
) -> None:
    """Rebuild a store in a new directory from tier 2 alone, after the log or metadata is lost. The source is not changed.

    Prints what was not recovered. Exit status 7: something is known to be missing or damaged.

    \b
    penstock rebuild --source ./store --data ./rebuilt
    """
    import asyncio

    from penstock.app.integrity.rebuild import rebuild as rebuild_store

    with ProgressLine(quiet=json) as line:
        report = asyncio.run(
            rebuild_store(
                place,
                data,
                tier2=tier2,
                endpoint=endpoint,
                insecure=insecure,
                ledger=ledger,
                key=key,
                keys=public_keys(public_key),
                progress=lambda so_far: line.show(_so_far_line(so_far)),
            )
        )
    if json:
        print_json(report.as_json())
    else:
        print("\n".join(_lines(report)))
    if not report.is_complete:
        raise typer.Exit(DAMAGE_STATUS)


def _so_far_line(so_far: Mapping[str, int]) -> str:
    return f"{counted(so_far['segments'], 'segment')}, {counted(so_far['chunks'], 'chunk')}, {format_size(so_far['bytes'])}"


def _lost_line(item: Mapping[str, Any]) -> str:
    back = f"; {item['writers_set_back']} writers set back" if item["writers_set_back"] else ""
    lost = f"{format_size(item['bytes'])}, {counted(item['events'], 'event')}"
    return f"  {item['segment']} from offset {item['start']} on: {lost}{back}"


def _lines(report: RebuildReport) -> list[str]:
    times = [item["as_of_ms"] for item in report.containers if item["as_of_ms"] is not None]
    as_of = moment(max(times)) if times else "unknown"
    lines = [
        f"rebuilt {report.data} from {report.place}, as of {as_of}",
        f"  {counted(len(report.streams.streams), 'stream')}, {counted(report.segments, 'segment')}, "
        f"{counted(report.tables, 'table')}, {counted(report.chunks, 'chunk')}, {format_size(report.bytes)}",
    ]
    if report.restored:
        lines.append("restored in full after being set aside for a damaged row:")
        lines += [f"  {name}" for name in report.restored]
    if report.lost:
        lines.append("not recovered, because it was only in the log:")
        lines += [_lost_line(item) for item in report.lost]
    if report.log:
        operations = counted(sum(item["operations"] for item in report.log), "operation")
        lines.append(f"not applied: {operations} found only in the log of {report.place}")
        lines.append("  start that store once, stop it, and rebuild again")
    if report.damage:
        lines.append("damaged:")
        lines += [f"  {damage_line(item)}" for item in report.damage]
    lines += [f"  {said}" for said in report.streams.made]
    if report.unnamed_chunks:
        lines.append(f"{len(report.unnamed_chunks)} chunks that no entry names were left where they are")
    return [*lines, NO_SECRETS, "what cannot be known:", *(f"  {said}" for said in report.unknown())]
