"""``penstock spark audit``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.common.options import KIND, OUT, SINCE, UNTIL, DryRunOption
from penstock.app.cli.common.output import print_facts, print_json, print_rows
from penstock.app.cli.common.target import ControllerOption, JsonOption, default_controller
from penstock.app.cli.common.words import moment
from penstock.core.units import counted, format_size
from penstock.spark.cli.session import (
    ConfOption,
    MasterOption,
    SourceOption,
    pairs,
    show_progress,
    spark_session,
    time_ms,
)

if TYPE_CHECKING:
    from penstock.spark.jobs.audit.job import AuditReport

_SHOWN = 20  # rows per table on the screen


TargetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[SCOPE[/STREAM]]", show_default=False, help="Only entries about this scope or stream.  [default: all]"
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help=f"{OUT} As a Parquet table, created or brought up to date; without it, only the sums are printed.",
        show_default=False,
    ),
]
SinceOption = Annotated[str | None, typer.Option("--since", metavar="TIME", help=SINCE, show_default=False)]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help=UNTIL, show_default=False)]
KindOption = Annotated[list[str] | None, typer.Option("--kind", metavar="KIND", help=KIND)]


def audit(
    target: TargetArgument = None,
    out: OutOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    kind: KindOption = None,
    option: SourceOption = None,
    controller: ControllerOption = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Print what each rule deleted and who lost unread data: the store's audit stream, summed by rule, stream and
    subscriber.

    The store keeps entries for 7 years; a table (--out) keeps them as long as you like. Run the same command regularly, for
    example every day. Each run adds the entries since the last run exactly once, all or none.

    \b
    penstock spark audit                                          the sums of all entries
    penstock spark audit web --since 2026-05-01 --kind evict      who was moved past unread data in scope web
    penstock spark audit --out /lake/audit                        create the table, or bring it up to date
    SELECT rule, sum(removed_bytes) FROM parquet.`/lake/audit` GROUP BY rule
    """
    from penstock.spark.jobs.audit.job import AuditRequest
    from penstock.spark.jobs.audit.job import audit as run
    from penstock.spark.jobs.audit.rows import Choice

    request = AuditRequest(
        read={"controller": controller or default_controller(), **pairs(option, "--option")},
        choice=Choice(target=target, kinds=tuple(kind or ()), since_ms=time_ms(since), until_ms=time_ms(until)),
        output=out,
    ).checked()
    if dry_run:
        _print_report(run(None, request, dry_run=True), as_json=json)
        return
    with spark_session("audit", master=master, conf=conf) as spark, show_progress(quiet=json) as on_progress:
        report = run(spark, request, on_progress=on_progress)
    _print_report(report, as_json=json)


def _print_report(report: AuditReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report.as_json())
        return
    sums = report.sums
    facts: dict[str, object] = {}
    if report.dry_run:
        facts["would read"] = f"{counted(report.entries, 'entry')}, {format_size(report.read_bytes)}"
        facts["would write"] = report.output or "nothing"
        print_facts(facts, as_json=False)
        return
    facts["read"] = f"{format_size(report.read_bytes)}, of which {sums.entries:,} entries were asked for"
    if sums.first_ms is not None and sums.last_ms is not None:
        facts["decided"] = f"{moment(sums.first_ms)} to {moment(sums.last_ms)}"
    if report.output is not None:
        facts["table"] = f"{report.output}, run {report.run}" if report.run else f"{report.output}: nothing new"
    if sums.kinds:
        facts["kinds"] = ", ".join(f"{name} {count:,}" for name, count in sums.kinds.items())
    if sums.missing:
        facts["missing"] = f"{sums.missing:,} entries found no room while a disk was full"
    if report.lost:
        facts["too late"] = [
            f"deleted before it was read: offsets {item['from']} to {item['to']}" for item in report.lost
        ]
    print_facts(facts, as_json=False)
    _table("by rule", ["rule"], sums.rules)
    _table("by stream", ["scope", "stream"], sums.streams)
    hurt = [
        [item["subscriber"], item["rule"], item["streams"], *_lost(item), item["dropped"] or ""]
        for item in sums.subscribers
    ]
    _rows("by subscriber", ["subscriber", "rule", "streams", "lost unread", "events", "dropped"], hurt)
    held = [[item["hold"], item["owner"], item["streams"]] for item in sums.holds]
    _rows("held back by", ["hold", "owner", "streams"], held)


def _table(title: str, names: list[str], found: Sequence[Mapping[str, Any]]) -> None:
    columns = [*names, "entries", "removed", "events", "lost unread", "events"]
    rows = [
        [
            *(item[name] or "" for name in names),
            item["entries"],
            _size(item["removed_bytes"]),
            _events(item["removed_events"]),
            *_lost(item),
        ]
        for item in found
    ]
    _rows(title, columns, rows)


def _lost(item: Mapping[str, Any]) -> list[str]:
    return [_size(item["lost_bytes"]), _events(item["lost_events"])]


def _size(count: int) -> str:
    return format_size(count) if count >= 0 else f"-{format_size(-count)}"


def _events(count: int | None) -> str:
    return "not counted" if count is None else f"{count:,}"


def _rows(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    if not rows:
        return
    print()
    print_rows(columns, rows[:_SHOWN], as_json=False, title=title)
    if len(rows) > _SHOWN:
        print(f"and {len(rows) - _SHOWN} that lost less; --json has up to 1000")
