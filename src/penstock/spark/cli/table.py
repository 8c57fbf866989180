"""``penstock spark table``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.app.cli.output import print_facts, print_json
from penstock.app.cli.target import ControllerOption, JsonOption, StreamArgument, default_controller
from penstock.app.units import format_size
from penstock.spark.cli.session import (
    ConfOption,
    DryRunOption,
    MasterOption,
    SourceOption,
    source_options,
    spark_session,
    telling,
)


def table(
    stream: StreamArgument,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Of the table.", show_default=False)],
    key: Annotated[str, typer.Option(metavar="SQL", help="The key: a column or an expression.", show_default=False)],
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="DDL",
            help="Of the events' JSON, as 'sensor STRING, value DOUBLE'; without it the table has the column event.",
            show_default=False,
        ),
    ] = None,
    delete_when: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", help="An event for which this is true takes its key out of the table.", show_default=False
        ),
    ] = None,
    subscriber: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of the table.  [default: table-STREAM-DIR]", show_default=False),
    ] = None,
    buckets: Annotated[
        int, typer.Option(help="Parts of the table, rewritten as a whole; fixed with the first run.")
    ] = 16,
    keep: Annotated[int, typer.Option(help="Versions that stay, for readers that are at one.")] = 2,
    option: SourceOption = None,
    controller: ControllerOption = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Keep the latest event of each key as a Parquet table, so that the stream may forget the rest.

    Each run reads what came since the last one. The table is a subscriber of the stream: with a retention policy that
    goes by consumption, the stream keeps what the table does not have yet, and may lose what it has. Read DIR/current.
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
    with telling(quiet=json) as tell, spark_session("table", master=master, conf=conf) as spark:
        report = update_table(spark, request, told=tell, dry_run=dry_run)
    if json:
        print_json(report.as_json())
        return
    facts: dict[str, object] = {"table": report.table, "subscriber": report.subscriber}
    if dry_run:
        facts["would read"] = format_size(report.read_bytes)
    else:
        facts["read"] = f"{report.events:,} events, {format_size(report.read_bytes)}"
        facts["changed"] = f"{report.upserts:,} keys, {report.deletes:,} deleted, in {report.buckets} buckets"
        if report.without_key:
            facts["without key"] = f"{report.without_key:,} events"
    facts["rows"] = f"{report.rows:,} in version {report.number}"
    print_facts(facts, as_json=False)
