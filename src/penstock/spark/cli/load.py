"""``penstock spark load``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.cli.common.options import DDL, FORMAT, KEY_BY, OPTION, SEGMENTS, SIZES, DryRunOption
from penstock.app.cli.common.output import print_facts, print_json
from penstock.app.cli.common.target import ControllerOption, JsonOption, StreamArgument, default_controller
from penstock.core.units import counted, format_size, parse_size
from penstock.spark.cli.session import ConfOption, MasterOption, pairs, show_progress, spark_session

if TYPE_CHECKING:
    from penstock.spark.jobs.load import LoadReport

PathsArgument = Annotated[
    list[str], typer.Argument(metavar="PATH...", help="Files or directories.", show_default=False)
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="parquet|csv|json|orc|text",
        help=f"{FORMAT} Default: by the names of the files; a directory is parquet.",
        show_default=False,
    ),
]
EventOption = Annotated[
    str | None,
    typer.Option(
        "--event",
        metavar="SQL",
        help="The event, binary or string: a column or an expression.  [default: column event, else to_json(struct(*))]",
        show_default=False,
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key-by", metavar="SQL", help=f"{KEY_BY} It is the routing key.", show_default=False),
]
OrderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--order-by",
        metavar="SQL",
        help="Order of the events of one key: a column or an expression, 'at desc' for descending. Needs --key-by; "
        "may be given again.",
        show_default=False,
    ),
]
SchemaOption = Annotated[
    str | None,
    typer.Option("--schema", metavar="DDL", help=f"{DDL} Of the input.", show_default=False),
]
ReaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help=f"{OPTION} header=false.",
        show_default=False,
    ),
]
SegmentsOption = Annotated[
    int, typer.Option("--segments", metavar="N", min=1, help=f"{SEGMENTS} If the stream is created.")
]
PartOption = Annotated[
    str, typer.Option("--part", metavar="SIZE", help=f"How much input is written as one transaction. {SIZES}")
]
RootOption = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="DIR",
        help="Identify files by their paths below this directory. Use it if the directory can be mounted elsewhere.",
        show_default=False,
    ),
]
AgainOption = Annotated[bool, typer.Option("--again", help="Load the input even if it was loaded before.")]


def load(
    stream: StreamArgument,
    paths: PathsArgument,
    kind: FormatOption = None,
    event: EventOption = None,
    key: KeyOption = None,
    order_by: OrderOption = None,
    schema: SchemaOption = None,
    option: ReaderOption = None,
    segments: SegmentsOption = 1,
    part: PartOption = "8GiB",
    again: AgainOption = False,
    root: RootOption = None,
    controller: ControllerOption = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Load files into a stream once. If the files have not changed, a second run loads nothing.

    Readers see all of a part (--part) or nothing of it. If the command is stopped, run it again: it continues with the
    first missing part. A directory with one more file counts as different input: then name only the new files.

    \b
    penstock spark load plant/turbine /lake/in --key-by sensor --order-by at
    """
    from penstock.spark.jobs.load import LoadRequest
    from penstock.spark.jobs.load import load as run

    request = LoadRequest(
        paths=tuple(paths),
        write={
            "controller": controller or default_controller(),
            "stream": stream,
            "default_num_segments": str(segments),
        },
        format=kind,
        reader=pairs(option, "--option"),
        schema=schema,
        event=event,
        key=key,
        order_by=tuple(order_by or ()),
        part_bytes=parse_size(part),
        again=again,
        root=root,
    ).checked()
    with show_progress(quiet=json) as on_progress, spark_session("load", master=master, conf=conf) as spark:
        report = run(spark, request, on_progress=on_progress, dry_run=dry_run)
    if json:
        print_json(report.as_json())
    else:
        print_facts(_facts(report, dry_run=dry_run), as_json=False)


def _facts(report: LoadReport, *, dry_run: bool) -> dict[str, object]:
    """The report for people."""
    left = report.parts - report.skipped
    facts: dict[str, object] = {
        "stream": report.stream,
        "load": report.load,
        "input": f"{counted(report.files, 'file')}, {format_size(report.file_bytes)}",
        "parts": f"{report.parts}, of which {report.skipped} were loaded before",
    }
    if dry_run:
        facts["would write"] = f"{left} parts" if left else "nothing: all is loaded"
        facts["first events"] = [f"{item.get('routing_key') or '-'}  {item['event']}" for item in report.sample]
    else:
        facts["written"] = f"{counted(report.events, 'event')}, {format_size(report.event_bytes)}"
    return facts
