"""``penstock spark table``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.cli.common.options import KEY_BY, DryRunOption
from penstock.app.cli.common.output import print_facts, print_json
from penstock.app.cli.common.target import ControllerOption, JsonOption, StreamArgument, default_controller
from penstock.core.units import counted, format_size
from penstock.spark.cli.session import (
    ConfOption,
    MasterOption,
    SchemaOption,
    SourceOption,
    delete_when_option,
    show_progress,
    source_options,
    spark_session,
    subscriber_option,
)

if TYPE_CHECKING:
    from penstock.spark.jobs.table import TableReport

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the table.", show_default=False)]
KeyOption = Annotated[str, typer.Option("--key-by", metavar="SQL", help=KEY_BY, show_default=False)]
DeleteWhenOption = Annotated[str | None, delete_when_option()]
SubscriberOption = Annotated[str | None, subscriber_option("table-STREAM-DIR")]
BucketsOption = Annotated[
    int, typer.Option("--buckets", metavar="N", help="Number of files per version; the first run fixes it.")
]
KeepOption = Annotated[
    int, typer.Option("--keep", metavar="N", help="Number of versions to keep, for readers of older ones.")
]


def table(
    stream: StreamArgument,
    directory: DirectoryArgument,
    key: KeyOption,
    schema: SchemaOption = None,
    delete_when: DeleteWhenOption = None,
    subscriber: SubscriberOption = None,
    buckets: BucketsOption = 16,
    keep: KeepOption = 2,
    option: SourceOption = None,
    controller: ControllerOption = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Keep the latest event of each key in a Parquet table, so that the stream can delete the older ones.

    Each run reads the events since the last run. The table is a subscriber of the stream: under a retention policy by
    consumption, the stream keeps the events that the table does not have yet, and can delete the others. Read DIR/current.

    \b
    penstock spark table plant/turbine /lake/turbine --schema "sensor STRING, value DOUBLE" --key-by sensor
    """
    from penstock.spark.jobs.table import TableRequest, update_table

    request = TableRequest(
        read=source_options(stream, controller or default_controller(), option),
        directory=directory,
        key=key,
        schema=schema,
        delete_when=delete_when,
        subscriber=subscriber,
        buckets=buckets,
        keep=keep,
    ).checked()
    with show_progress(quiet=json) as on_progress, spark_session("table", master=master, conf=conf) as spark:
        report = update_table(spark, request, on_progress=on_progress, dry_run=dry_run)
    if json:
        print_json(report.as_json())
    else:
        print_facts(_facts(report, dry_run=dry_run), as_json=False)


def _facts(report: TableReport, *, dry_run: bool) -> dict[str, object]:
    """The report for people."""
    facts: dict[str, object] = {"table": report.table, "subscriber": report.subscriber}
    if dry_run:
        facts["would read"] = format_size(report.read_bytes)
    else:
        facts["read"] = f"{counted(report.events, 'event')}, {format_size(report.read_bytes)}"
        facts["changed"] = (
            f"{counted(report.upserts, 'key')}, {report.deletes:,} deleted, in {counted(report.buckets, 'bucket')}"
        )
        if report.without_key:
            facts["without key"] = counted(report.without_key, "event")
    facts["rows"] = f"{report.rows:,} in version {report.number}"
    return facts
