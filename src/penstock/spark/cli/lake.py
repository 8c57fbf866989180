"""``penstock spark lake``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.cli.common.options import FOLLOW, FORMAT, FROM, KEY_BY, PARTITION_BY, DryRunOption
from penstock.app.cli.common.output import print_facts, print_json
from penstock.app.cli.common.target import ControllerOption, JsonOption, StreamArgument, default_controller
from penstock.core.units import counted, format_size
from penstock.model.errors import InvalidArgumentError
from penstock.spark.cli.session import (
    CatalogOption,
    ConfOption,
    MasterOption,
    SchemaOption,
    SourceOption,
    StorageOption,
    delete_when_option,
    pairs,
    show_progress,
    source_options,
    spark_session,
    subscriber_option,
)

if TYPE_CHECKING:
    from penstock.spark.jobs.lake.job import LakeReport, LakeRequest

TableArgument = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="Directory or URL (s3://, gs://, az://) of the table; of Iceberg NAMESPACE.TABLE.",
        show_default=False,
    ),
]
FormatOption = Annotated[
    str, typer.Option("--format", metavar="delta|iceberg|parquet", help=FORMAT, show_default=False)
]
PartitionOption = Annotated[
    str | None,
    typer.Option("--partition-by", metavar="PERIOD", help=PARTITION_BY, show_default=False),
]
TimeOption = Annotated[
    str, typer.Option("--time-column", metavar="NAME", help="Column of type TIMESTAMP to partition by.")
]
BadOption = Annotated[
    str,
    typer.Option(
        "--bad-events",
        metavar="fail|null",
        help="An event that does not fit the schema fails the run, or has null in its columns.",
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key-by", metavar="SQL", help=f"{KEY_BY} The table keeps the latest event of each key.", show_default=False
    ),
]
DeleteWhenOption = Annotated[str | None, delete_when_option(" Needs --key-by.")]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help=f"{FOLLOW} Runs until it is interrupted.")]
EveryOption = Annotated[float, typer.Option("--every", metavar="SECONDS", help="Pause between commits, with --follow.")]
CompactOption = Annotated[
    int,
    typer.Option("--compact-at", metavar="N", help="Merge small files when there are at least this many; 0: never."),
]
StartOption = Annotated[
    str | None,
    typer.Option("--from", metavar="POSITION", help=f"{FROM} For a new table only.", show_default=False),
]
RecordOption = Annotated[
    bool,
    typer.Option(
        "--record",
        help="Events are records. Their key, value, headers and timestamp are columns, and --schema describes the JSON of"
        " the value.",
    ),
]
SubscriberOption = Annotated[str | None, subscriber_option("lake-STREAM-TABLE")]


def lake(
    stream: StreamArgument,
    table: TableArgument,
    format_: FormatOption,
    schema: SchemaOption = None,
    record: RecordOption = False,
    partition: PartitionOption = None,
    time: TimeOption = "append_time",
    key: KeyOption = None,
    delete_when: DeleteWhenOption = None,
    bad_events: BadOption = "fail",
    follow: FollowOption = False,
    every: EveryOption = 10.0,
    compact_at: CompactOption = 64,
    start: StartOption = None,
    subscriber: SubscriberOption = None,
    storage: StorageOption = None,
    catalog: CatalogOption = None,
    option: SourceOption = None,
    controller: ControllerOption = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Append the events of a stream to a table of Delta Lake, Apache Iceberg or Parquet, each exactly once.

    Each run continues where the last commit of the table ends. It may be stopped at any moment and run again. The table is
    a subscriber of the stream: under a retention policy by consumption, the stream keeps the events that the table does not
    have yet, and can delete the others.

    \b
    Examples:
      penstock spark lake plant/turbine /lake/turbine --format delta --schema "sensor STRING, value DOUBLE"
      penstock spark lake plant/turbine s3://lake/turbine --format delta --partition-by day --follow
      penstock spark lake plant/turbine plant.turbine --format iceberg --catalog uri=sqlite:////lake/catalog.db \\
        --catalog warehouse=s3://lake/tables
    """
    from penstock.spark.jobs.lake.job import LakeRequest
    from penstock.spark.lake.opening import TableAddress

    if follow and (dry_run or every < 0):
        raise InvalidArgumentError(
            "--follow cannot be combined with --dry-run, and its pause must not be negative", every=every
        )
    request = LakeRequest(
        read=source_options(stream, controller or default_controller(), option, **_named(start, record=record)),
        address=TableAddress(
            format=format_, target=table, storage=pairs(storage, "--storage"), catalog=pairs(catalog, "--catalog")
        ).checked(),
        schema=schema,
        partition=partition,
        time=time,
        subscriber=subscriber,
        key=key,
        delete_when=delete_when,
        bad_events=bad_events,
        compact_at=compact_at,
    ).checked()
    _run(request, every if follow else None, master=master, conf=conf, dry_run=dry_run, as_json=json)


def _named(start: str | None, *, record: bool) -> dict[str, str]:
    """Options of the source that options of this command set."""
    cuts = {} if start is None else {"start_stream_cut": start}
    return cuts | ({"event_format": "record"} if record else {})


def _run(
    request: LakeRequest, every_s: float | None, *, master: str, conf: list[str] | None, dry_run: bool, as_json: bool
) -> None:
    """``every_s``: None, or the pause between the commits of a run that follows the stream."""
    from penstock.spark.jobs.lake.job import append_to_table, follow_with_table

    with show_progress(quiet=as_json) as on_progress, spark_session("lake", master=master, conf=conf) as spark:
        if every_s is None:
            _show(append_to_table(spark, request, on_progress=on_progress, dry_run=dry_run), as_json=as_json)
            return
        follow_with_table(
            spark,
            request,
            every_s=every_s,
            on_commit=lambda report: _show(report, as_json=as_json),
            on_progress=on_progress,
        )


def _show(report: LakeReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report.as_json())
        return
    facts: dict[str, object] = {"table": report.table, "subscriber": report.subscriber}
    if report.dry_run:
        facts["would read"] = format_size(report.read_bytes)
    else:
        facts["read"] = f"{counted(report.events, 'event')}, {format_size(report.read_bytes)}"
        facts["added"] = f"{counted(report.files, 'file')}, in commit {report.sequence}"
        if report.merged:
            facts["merged"] = counted(report.merged, "small file")
    print_facts(facts, as_json=False)
