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
from penstock.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from penstock.app.integrity.rebuild_report import RebuildReport


DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="DIR",
        help=f"{DATA} It must be new or empty. With --worker: the directory of the store.",
        show_default=False,
    ),
]
SourceOption = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="PLACE",
        help=f"{SOURCE} With several workers: the data directory of the store, or the place that has their parts.",
        show_default=False,
    ),
]
WorkerOption = Annotated[
    int | None,
    typer.Option(
        "--worker",
        metavar="N",
        min=0,
        help="Repair only this worker of the store in --data, in place, from its part of tier 2.",
        show_default=False,
    ),
]


def rebuild(
    data: DataOption,
    place: SourceOption = None,
    worker: WorkerOption = None,
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

    A store with several workers is rebuilt with as many. If only one worker is damaged, --worker repairs it in place:
    other workers and chunks stay as they are, and the files that it replaces are kept beside the new ones.

    Prints what was not recovered. Exit status 7: something is known to be missing or damaged.

    \b
    penstock rebuild --source ./store --data ./rebuilt
    penstock rebuild --data ./store --worker 1
    """
    import asyncio

    from penstock.app.integrity.rebuild import rebuild as rebuild_store
    from penstock.app.integrity.repair_worker import repair_worker

    with ProgressLine(quiet=json) as line:
        if worker is not None:
            if place is not None or ledger is not None or key is not None:
                raise InvalidArgumentError(
                    "--worker repairs a worker of the store in --data, so it goes with neither --source nor a ledger"
                )
            report = asyncio.run(repair_worker(data, worker, tier2=tier2, endpoint=endpoint, insecure=insecure))
        elif place is None:
            raise InvalidArgumentError("give --source, the place to rebuild from, or --worker, the worker to repair")
        else:
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
    back = f"; {counted(item['writers_set_back'], 'writer')} set back" if item["writers_set_back"] else ""
    lost = f"{format_size(item['bytes'])}, {counted(item['events'], 'event')}"
    return f"  {item['segment']} from offset {item['start']} on: {lost}{back}"


def _workers(report: RebuildReport) -> str:
    return f"{report.workers} workers, " if report.workers > 1 else ""


def _unreachable_line(item: Mapping[str, Any]) -> str:
    return f"  {item['stream']}: {format_size(item['bytes'])} in {counted(len(item['segments']), 'segment')}"


def _first_lines(report: RebuildReport) -> list[str]:
    times = [item["as_of_ms"] for item in report.containers if item["as_of_ms"] is not None]
    as_of = moment(max(times)) if times else "unknown"
    if report.worker is None:
        return [
            f"rebuilt {report.data} from {report.place}, as of {as_of}",
            f"  {_workers(report)}{counted(len(report.streams.streams), 'stream')}, "
            f"{counted(report.segments, 'segment')}, {counted(report.tables, 'table')}, "
            f"{counted(report.chunks, 'chunk')}, {format_size(report.bytes)}",
        ]
    lines = [f"repaired worker {report.worker} in {report.data} from {report.place}"]
    if report.log_kept:
        lines.append("  its log is sound, and the next start replays it: nothing is lost")
    else:
        lines.append(f"  its log could not be used, so it continues as of {as_of}")
        lines.append("  the next start moves all streams of the store to new segments")
    if report.replaced is not None:
        lines.append(f"  the replaced files are in {report.replaced}")
    return lines


def _lines(report: RebuildReport) -> list[str]:
    lines = _first_lines(report)
    if report.restored:
        lines.append("restored in full after being set aside for a damaged row:")
        lines += [f"  {name}" for name in report.restored]
    if report.lost:
        lines.append("not recovered, because it was only in the log:")
        lines += [_lost_line(item) for item in report.lost]
    if report.log:
        operations = counted(sum(item["operations"] for item in report.log), "operation")
        lines.append(f"not applied: {operations} found only in the log of {report.place}")
        if report.worker is None:
            lines.append("  start that store once, stop it, and rebuild again")
    if report.damage:
        lines.append("damaged:")
        lines += [f"  {damage_line(item)}" for item in report.damage]
    short = [item for item in report.streams.streams if item["missing_bytes"]]
    if short:
        lines.append("missing before later events of the same stream:")
        lines += [f"  {item['stream']}: {format_size(item['missing_bytes'])}" for item in short]
    lines += [f"  {said}" for said in report.streams.made]
    lines += [f"  cannot be read: {said}" for said in report.streams.unreadable]
    if report.streams.unreachable:
        lines.append("stored, but not in the recovered metadata of streams, so no reader can reach it:")
        lines += [_unreachable_line(item) for item in report.streams.unreachable]
    if report.unnamed_chunks:
        lines.append(f"{len(report.unnamed_chunks)} chunks that no entry names were left where they are")
    if report.worker is None:
        lines.append(NO_SECRETS)
    unknown = report.unknown()
    return [*lines, *(["what cannot be known:"] if unknown else []), *(f"  {said}" for said in unknown)]
