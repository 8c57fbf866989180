"""``penstock spark export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.cli.common.options import FROM, PARTITION_BY, SINCE, TO, UNTIL, DryRunOption
from penstock.app.cli.common.output import print_facts, print_json
from penstock.app.cli.common.target import ControllerOption, JsonOption, StreamArgument, default_controller
from penstock.app.cli.common.words import moment
from penstock.core.units import counted, format_size
from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import SegmentId
from penstock.spark.cli.session import (
    ConfOption,
    MasterOption,
    SourceOption,
    show_progress,
    source_options,
    spark_session,
    time_ms,
)

if TYPE_CHECKING:
    from penstock.spark.jobs.export.job import ExportReport, ExportRequest

OutputArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="A directory that is not there yet.", show_default=False)
]
StartOption = Annotated[
    str | None,
    typer.Option("--from", metavar="POSITION", help=FROM, show_default=False),
]
EndOption = Annotated[
    str | None,
    typer.Option("--to", metavar="POSITION", help=TO, show_default=False),
]
AfterOption = Annotated[
    Path | None,
    typer.Option(
        "--after", metavar="DIR", help="Continue where the export in this directory ended.", show_default=False
    ),
]
OffsetsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--offsets",
        metavar="SEGMENT=START:END",
        help="Only events that begin at these offsets of a segment; may be given again.",
        show_default=False,
    ),
]
TimeFieldOption = Annotated[
    str | None,
    typer.Option(
        "--time-field",
        metavar="NAME",
        help="Field of JSON events with their time, for example user.at: ISO 8601 or a number.",
        show_default=False,
    ),
]
TimeUnitOption = Annotated[str, typer.Option("--time-unit", metavar="s|ms|us", help="Unit of a time that is a number.")]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help=f"{SINCE} By --time-field, or by append time.", show_default=False),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help=f"{UNTIL} Events of this time are left out.", show_default=False),
]
PartitionOption = Annotated[
    str | None,
    typer.Option(
        "--partition-by", metavar="PERIOD", help=f"{PARTITION_BY} Writes directories date=…/hour=….", show_default=False
    ),
]
ColumnsOption = Annotated[
    str,
    typer.Option(
        "--columns",
        metavar="NAMES",
        help="Columns to write, separated by commas, of event, segment_id, offset, scope, stream, append_time.",
    ),
]
CompressionOption = Annotated[
    str, typer.Option("--compression", metavar="zstd|snappy|gzip|none", help="Compression of the files.")
]


def export(
    stream: StreamArgument,
    output: OutputArgument,
    start: StartOption = None,
    end: EndOption = None,
    after: AfterOption = None,
    offsets: OffsetsOption = None,
    time_field: TimeFieldOption = None,
    time_unit: TimeUnitOption = "ms",
    since: SinceOption = None,
    until: UntilOption = None,
    partition: PartitionOption = None,
    columns: ColumnsOption = "event,segment_id,offset",
    compression: CompressionOption = "zstd",
    option: SourceOption = None,
    controller: ControllerOption = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Write a range of a stream as Parquet files, each event exactly once. The directory appears when all files are
    complete.

    If the command is stopped, run it again. It keeps the files that are already written, and continues with the same
    range. All executors must be able to write to the directory.

    \b
    penstock spark export plant/turbine /lake/turbine --from earliest --to latest --since 2026-01-31
    """
    from penstock.spark.jobs.event_time import EventTime
    from penstock.spark.jobs.export.job import ExportRequest
    from penstock.spark.jobs.export.job import export as run

    cuts = {name: cut for name, cut in (("start_stream_cut", start), ("end_stream_cut", end)) if cut is not None}
    read = source_options(stream, controller or default_controller(), option, **cuts)
    request = ExportRequest(
        read=read,
        output=output,
        after=after,
        offsets=dict(_offsets(text) for text in offsets or ()),
        partition=partition,
        time=None if time_field is None else EventTime(field=time_field, unit=time_unit),
        since_us=_micros(since),
        until_us=_micros(until),
        columns=tuple(name.strip() for name in columns.split(",")),
        compression=compression,
    ).checked()
    with show_progress(quiet=json) as on_progress, spark_session("export", master=master, conf=conf) as spark:
        report = run(spark, request, on_progress=on_progress, dry_run=dry_run)
    if json:
        print_json(report.as_json())
    else:
        print_facts(_facts(report, request, dry_run=dry_run), as_json=False)


def _facts(report: ExportReport, request: ExportRequest, *, dry_run: bool) -> dict[str, object]:
    """The report for people."""
    facts: dict[str, object] = {
        "stream": report.stream,
        "output": report.output,
        "events": f"{report.events:,}, {format_size(report.event_bytes)}",
    }
    if dry_run:
        facts["would write"] = f"{counted(report.shares, 'share')}; nothing was written"
    else:
        facts["written"] = f"{counted(report.files, 'file')}, {format_size(report.file_bytes)}"
        if report.resumed:
            facts["before"] = f"{report.resumed} of {report.shares} shares were written by an earlier run"
        if report.without_time:
            facts["without time"] = counted(report.without_time, "event")
    facts["ends at"] = report.end
    bounds = (request.since_us, request.until_us)
    if bounds != (None, None):
        facts["times"] = " to ".join("…" if item is None else moment(item // 1000) for item in bounds)
    return facts


def _offsets(text: str) -> tuple[SegmentId, tuple[int, int]]:
    segment, _, bounds = text.partition("=")
    low, _, high = bounds.partition(":")
    if not (segment.isdecimal() and low.isdecimal() and high.isdecimal()):
        raise InvalidArgumentError("--offsets must be SEGMENT=START:END, all whole numbers", offsets=text)
    return SegmentId(int(segment)), (int(low), int(high))


def _micros(text: str | None) -> int | None:
    found = time_ms(text)
    return None if found is None else found * 1000
