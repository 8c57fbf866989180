"""``penstock spark erase``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.common.loss import confirm, refusal
from penstock.app.cli.common.options import DDL, VALUES, DryRunOption, OwnerOption, ReasonOption, YesOption
from penstock.app.cli.common.output import DEFERRED_STATUS, ProgressLine, print_json, say
from penstock.app.cli.common.target import (
    ControllerOption,
    JsonOption,
    StreamArgument,
    default_controller,
    open_target,
    owner_of,
)
from penstock.app.cli.erase import (
    ErasureIdOption,
    deferred_by,
    erasure_of,
    not_examined,
    print_receipt,
    state_line,
    would_erase,
)
from penstock.app.cli.erasure.cases import JsonFieldOption
from penstock.app.erasure.values import values_from
from penstock.core.cases.matching import Contains, JsonField
from penstock.core.units import counted
from penstock.model.errors import ConflictError, InvalidArgumentError
from penstock.model.names import StreamName
from penstock.spark.cli.session import CatalogOption, ConfOption, MasterOption, StorageOption, pairs, spark_session
from penstock.spark.matching import Match, Where

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.jobs.erase import EraseReport
    from penstock.spark.jobs.erase_tables import TableErasure, TableSettings

AnywhereOption = Annotated[bool, typer.Option("--anywhere", help="Look for the values anywhere in the payload.")]
ValuesOption = Annotated[
    Path | None,
    typer.Option(
        "--values-from",
        metavar="FILE",
        help=f"{VALUES} They reach executors, never a plan, a log or the receipt.",
        show_default=False,
        exists=True,
    ),
]
SchemaOption = Annotated[
    str | None,
    typer.Option("--schema", metavar="DDL", help=f"{DDL} Of JSON events, for --where.", show_default=False),
]
WhereOption = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="SQL",
        help="A predicate over the columns of --schema. Its text may show in Spark's own logs.",
        show_default=False,
    ),
]


TablesOption = Annotated[
    bool,
    typer.Option(
        "--tables", help="Also delete the events from all tables that penstock spark lake created from the stream."
    ),
]


def erase(
    stream: StreamArgument,
    reason: ReasonOption,
    json_field: JsonFieldOption = None,
    anywhere: AnywhereOption = False,
    values: ValuesOption = None,
    schema: SchemaOption = None,
    where: WhereOption = None,
    owner: OwnerOption = None,
    erasure: ErasureIdOption = None,
    tables: TablesOption = False,
    storage: StorageOption = None,
    catalog: CatalogOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    controller: ControllerOption = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    json: JsonOption = False,
) -> None:
    """Blank every event that matches, in place and permanently, and print the receipt. This cannot be undone.

    When the search is done, it shows how many events it found and asks for confirmation. Without a terminal, it refuses
    before the search, unless --yes is given. --dry-run shows what it would erase.
    Executors read the stream from its head to its current tail. The store blanks the matches in all its tiers, and
    continues if the command is interrupted. If a hold covers any match, nothing is blanked and the exit status is 10; the
    erasure continues by itself when the hold ends. The same command with --id waits, and prints the receipt.

    Tables of the stream are listed as pending. --tables deletes their rows of these events, in all versions and files;
    with --id, also later. --id and --tables without a search apply a finished erasure, such as a case's, to the tables.

    \b
      penstock spark erase demo/clicks --json-field user.id --values-from ids.txt --reason "request 17" --dry-run
      penstock spark erase demo/clicks --schema "user string, age int" --where "user = 'ann' and age < 18" --reason "r 18"
    """
    from penstock.spark.jobs.erase import erase as run
    from penstock.spark.jobs.erase_tables import TableSettings

    settings = TableSettings(storage=pairs(storage, "--storage"), catalog=pairs(catalog, "--catalog"))
    address = controller or default_controller()
    if tables and erasure is not None and json_field is where is None and not anywhere:
        _in_tables_only(stream, erasure, settings, address, master, conf, as_json=json)
        return
    match = match_of(json_field, anywhere, values, schema, where)
    _check_may_ask(stream, asks=not (dry_run or yes))
    with ProgressLine(quiet=json) as line, spark_session("erase", master=master, conf=conf) as spark:
        report = run(
            spark,
            stream,
            match,
            controller=address,
            who=owner_of(owner),
            why=reason,
            erasure=erasure,
            dry_run=dry_run,
            confirm=None if yes else lambda found: _confirm(stream, found, line, as_json=json),
            progress=lambda state: line.show(state_line(state)),
        )
        found = _in_tables(spark, report.receipt, line, address, settings) if tables else None
    _show(report, found, as_json=json)


def _in_tables_only(
    stream: str,
    erasure: str,
    settings: TableSettings,
    controller: str,
    master: str,
    conf: list[str] | None,
    *,
    as_json: bool,
) -> None:
    """Perform an erasure that is done in the tables of its stream. Raises NotFoundError, InvalidArgumentError (it is not
    done, or of another stream), ConflictError (it is pending in a table)."""
    with open_target(controller, None) as store:
        found = store.erasures().show(erasure)
    if found.receipt is None or found.stream != stream:
        raise InvalidArgumentError("no erasure with a receipt of this stream", erasure=erasure, stream=found.stream)
    with ProgressLine(quiet=as_json) as line, spark_session("erase", master=master, conf=conf) as spark:
        in_tables = _in_tables(spark, found.receipt, line, controller, settings)
    _show_tables(found.receipt, in_tables, as_json=as_json)


def _check_may_ask(stream: str, *, asks: bool) -> None:
    """Raise the error of a question that nobody can answer. Called before the search, because a search takes long."""
    if asks and not sys.stdin.isatty():
        raise refusal(f"erase events of {stream}", events="unknown before the search; use --dry-run to count them")


def _in_tables(
    spark: SparkSession,
    receipt: Mapping[str, Any] | None,
    line: ProgressLine,
    controller: str,
    settings: TableSettings,
) -> Sequence[TableErasure]:
    """Delete the events from the tables of the stream, if they are erased."""
    from penstock.spark.jobs.erase_tables import erase_in_tables

    if receipt is None:
        return ()
    line.show("state tables")
    stream, erasure = StreamName.parse(receipt["stream"]), receipt["erasure"]
    return erase_in_tables(spark, stream, erasure, controller=controller, settings=settings)


def _show(report: EraseReport, tables: Sequence[TableErasure] | None, *, as_json: bool) -> None:
    """``tables``: None, or how the erasure stands in each."""
    if report.receipt is not None and tables is not None:
        _show_tables(report.receipt, tables, as_json=as_json)
    elif report.receipt is not None:
        print_receipt(report.receipt, as_json=as_json)
    elif report.state == "deferred":
        what = f"{counted(report.events, 'event')} of {report.stream}: {deferred_by(report.holds)}"
        if report.not_examined:
            what = f"{what}; {not_examined(report.looked_for)}"
        text = f"erasure {report.erasure}, {what}; it continues when no hold covers them"
        say(text, as_json=as_json, **report.as_json())
        raise typer.Exit(DEFERRED_STATUS)
    else:
        found = would_erase(report.stream, report.events, report.bytes, report.holds)
        if report.not_examined:
            found = f"{found}; {not_examined(report.looked_for)}"
        say(found, as_json=as_json, **report.as_json())


def _show_tables(receipt: Mapping[str, Any], found: Sequence[TableErasure], *, as_json: bool) -> None:
    """Print the receipt, and how the erasure stands in each table. Raises ConflictError if it is pending in one."""
    if as_json:
        print_json({"receipt": dict(receipt), "tables": [item.as_json() for item in found]})
    else:
        print_receipt(receipt, as_json=False)
        print("tables:" if found else "no table is a subscriber of the stream")
    for item in () if as_json else found:
        did = f"{counted(item.rows, 'row')} and {counted(item.files, 'file')} deleted"
        print(f"  {item.table}: {item.state}, {item.why or did}")
    pending = [item.table for item in found if item.state == "pending"]
    if pending:
        raise ConflictError(
            "the erasure is pending in a table; correct the reason, then run the same command with the same --id",
            erasure=receipt["erasure"],
            table=pending[0],
        )


def _confirm(stream: str, found: Mapping[str, Any], line: ProgressLine, *, as_json: bool) -> None:
    line.show("")
    confirm(erasure_of(stream, found), yes=False, as_json=as_json)


def match_of(
    json_field: str | None, anywhere: bool, values: Path | None, schema: str | None, where: str | None
) -> Match:
    """The search that the options describe. Raises InvalidArgumentError if they describe none or several."""
    chosen = [json_field is not None, anywhere, where is not None]
    if sum(chosen) != 1:
        raise InvalidArgumentError("give one of --json-field, --anywhere and --where: what to look for")
    if where is not None:
        if schema is None or values is not None:
            raise InvalidArgumentError("--where needs --schema, and excludes --values-from")
        return Where(schema=schema, where=where)
    if json_field is not None and not all(json_field.split(".")):
        raise InvalidArgumentError("--json-field must be a name, or names joined by dots", json_field=repr(json_field))
    if values is None or schema is not None:
        raise InvalidArgumentError(
            "--json-field and --anywhere need --values-from, and cannot be combined with --schema"
        )
    wanted = frozenset(values_from(values))
    return Contains(values=wanted) if json_field is None else JsonField(path=json_field, values=wanted)
