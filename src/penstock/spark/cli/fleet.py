"""``penstock spark fleet``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.app.cli.common.options import AS_OF, FACTS, OUT, PNG, SCOPE, DryRunOption
from penstock.app.cli.common.output import print_facts, print_json, print_rows
from penstock.app.cli.common.policy_options import PolicyChange, takes_policy
from penstock.app.cli.common.target import ControllerOption, JsonOption, default_controller
from penstock.app.cli.common.words import parse_moment
from penstock.app.cli.subscribers import print_subscribers
from penstock.codec.control.policy_document import encode_document
from penstock.core.units import counted, format_size
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import check_name
from penstock.model.retention import EMPTY, Inherit, Level
from penstock.spark.cli.session import ConfOption, MasterOption, show_progress, spark_session
from penstock.spark.fleet import sources
from penstock.spark.fleet.changes import ALL_FIELDS, PolicyEdit
from penstock.spark.fleet.report import FleetReport, Side
from penstock.spark.fleet.store import StoreFacts, StoreShare, store_shares
from penstock.storage.machine.clock import RealClock

_PICTURES = (".png", ".svg", ".pdf")
_SHOWN = 20  # rows per table on the screen
_STORE = "store"

FactsOption = Annotated[
    list[str],
    typer.Option(
        "--facts",
        metavar="FILE",
        help=f"{FACTS} .jsonl, .jsonl.gz or .parquet, or a directory of them; may be given again. "
        "store: all streams of the running store (--controller).",
        show_default=False,
    ),
]
ScopesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scope", metavar="SCOPE", help=f"{SCOPE} The change applies to them; may be given again.", show_default=False
    ),
]
ByOption = Annotated[str, typer.Option("--by", metavar="scope|day|rule", help="What a row of the table stands for.")]
AsOfOption = Annotated[
    str | None,
    typer.Option("--as-of", metavar="TIME", help=AS_OF, show_default=False),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help=f"{OUT} The decisions (Parquet), report.json and fleet.png.",
        show_default=False,
    ),
]
PngOption = Annotated[
    Path | None,
    typer.Option("--png", metavar="FILE", help=PNG, show_default=False),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace decisions that are in --out already.")]


@takes_policy
def fleet(
    change: PolicyChange,
    facts: FactsOption,
    scope: ScopesOption = None,
    by: ByOption = "scope",
    as_of: AsOfOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
    controller: ControllerOption = None,
    png: PngOption = None,
    dry_run: DryRunOption = False,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    json: JsonOption = False,
) -> None:
    """Print what the policies in force, or a change of them, would delete from very many streams.

    Also prints which subscribers would lose data.

    Each stream is decided by the planner of the retention loop. Nothing is changed anywhere; with facts from
    files no store is needed.

    \b
    penstock spark fleet --facts store                            what is deleted today
    penstock spark fleet --facts store --max-age 7d               and with a maximum age of 7 days
    penstock spark fleet --facts fleet/ --max-age 7d --scope web --out what-if
    penstock spark fleet --facts fleet/ --policy policy.json --by day --png days.png

    The options from --min-bytes to --none are the change to try, as in penstock retention set. They do not select
    streams. --max-age 7d sets the maximum age of every stream and leaves the other fields of its policy as they are.
    --policy FILE replaces the whole policy. The report compares the policies in force with the change. If the change
    contradicts a stream's policy, for example with a maximum below its minimum, it is not applied to that stream, and
    the report counts it.

    With --facts store, a second table shows the subscribers that hold the most, as penstock subscriber list prints
    them. With --json they are in "subscribers", with the same fields: held_bytes, lag_bytes, since_acknowledgement_s
    and others.

    Rows that cannot be used are reported with file and line. The others are processed, and the exit status is 1.
    """
    if by not in ("scope", "day", "rule"):
        raise InvalidArgumentError("--by must be scope, day or rule", by=repr(by[:40]))
    edit = _edit(change, scope or [])
    pictures = _pictures(png, out)
    at_ms = None if as_of is None else parse_moment(as_of, now_ms=RealClock().now_ms())
    chosen = _facts(facts, controller)
    if dry_run:
        _print_plan(chosen, edit, out, as_json=json)
        return
    from penstock.spark.jobs.fleet import fleet as run

    # Report missing files before the session starts, because that takes seconds.
    if not isinstance(chosen, StoreFacts):
        sources.find(chosen)
    with show_progress(quiet=json) as on_progress, spark_session("fleet", master=master, conf=conf) as spark:
        report = run(spark, chosen, edit, at_ms=at_ms, out=out, overwrite=overwrite, on_progress=on_progress)
    for path in pictures:
        _draw(report, path, asked=path == png)
    _show(report, by, as_json=json)


def _show(report: FleetReport, by: str, *, as_json: bool) -> None:
    """Print the report. Exits with 1 if rows could not be used."""
    if as_json:
        print_json(report.as_json())
    else:
        print_report(report, by)
    if report.failed:
        raise typer.Exit(1)


def _pictures(png: Path | None, out: Path | None) -> list[Path]:
    """The files of the pictures. Raises InvalidArgumentError."""
    found = [path for path in (png, out / "fleet.png" if out is not None else None) if path is not None]
    for path in found:
        if path.suffix not in _PICTURES:
            raise InvalidArgumentError("the name of a picture must end in .png, .svg or .pdf", png=str(path))
    return found


def _edit(change: PolicyChange, scopes: list[str]) -> PolicyEdit | None:
    """The change that the options describe."""
    names = frozenset(check_name("scope", name) for name in scopes)
    if change.is_empty:
        if names:
            raise InvalidArgumentError(
                "--scope selects where a change applies: give the change as well, such as --max-age 7d"
            )
        return None
    change.check(Level.STREAM)
    cleared: list[str] = []
    if change.whole is not None:
        cleared = list(ALL_FIELDS)
    elif change.drop or change.pravega is not None:
        cleared = [path for path in ALL_FIELDS if path.startswith("retain.") or path == "unsubscribed"]
    cleared += [path for path, value in change.fields.items() if isinstance(value, Inherit) and path not in cleared]
    return PolicyEdit(values=change.apply(EMPTY), cleared=tuple(cleared), scopes=names)


def _facts(facts: list[str], controller: str | None) -> list[str] | StoreFacts:
    """Files, or the running store. Raises InvalidArgumentError."""
    if facts == [_STORE]:
        return StoreFacts(controller=controller or default_controller())
    if _STORE in facts:
        raise InvalidArgumentError("--facts store cannot be combined; for a file of that name write ./store")
    if controller is not None:
        raise InvalidArgumentError("--controller needs --facts store", controller=controller)
    return facts


def _print_plan(facts: list[str] | StoreFacts, edit: PolicyEdit | None, out: Path | None, *, as_json: bool) -> None:
    files = [] if isinstance(facts, StoreFacts) else sources.find(facts)
    shares: Sequence[sources.Share | StoreShare]
    shares = store_shares(facts) if isinstance(facts, StoreFacts) else sources.shares(files)
    known = [share.rows for share in shares]
    plan: dict[str, Any] = {
        "files": len(files),
        "store": facts.controller if isinstance(facts, StoreFacts) else None,
        "streams": None if None in known else sum(filter(None, known)),
        "tasks": len(shares),
        "change": None if edit is None else edit.in_words(),
        "out": None if out is None else str(out),
    }
    if as_json:
        print_json({**plan, "document": None if edit is None else encode_document(edit.values)})
        return
    most = plan["streams"]
    streams = "an unknown number of streams" if most is None else f"at most {counted(most, 'stream')}"
    where = counted(plan["files"], "file") if plan["store"] is None else f"store {plan['store']}"
    print_facts(
        {
            "facts": f"{where}, {streams}, {counted(plan['tasks'], 'task')}",
            "change": plan["change"] or "none: the policies in force",
            "writes": plan["out"] or "nothing",
        },
        as_json=False,
    )


def _draw(report: FleetReport, path: Path, *, asked: bool) -> None:
    from penstock.spark.fleet.picture import draw

    try:
        draw(report, path)
    except InvalidArgumentError as error:
        if asked:
            raise
        print(f"note: {error}", file=sys.stderr)


def print_report(report: FleetReport, by: str) -> None:
    """The report for people."""
    sides = [report.today] if report.change is None else [report.today, report.change]
    print(headline(report))
    columns, rows = _table(report, by)
    if rows:
        print()
        print_rows(columns, rows[:_SHOWN], as_json=False)
        if len(rows) > _SHOWN:
            print(f"and {len(rows) - _SHOWN} smaller ones")
    for label, side in zip(("today", "with the change"), sides, strict=False):
        for line in hurt_lines(side):
            print(f"{label}: {line}")
    if report.subscribers:
        print("\nsubscribers that hold the most:")
        print_subscribers(report.subscribers[:_SHOWN], has_streams=True)
        if report.subscribers_total > _SHOWN:
            print(f"and {report.subscribers_total - _SHOWN:,} that hold less; penstock subscriber list shows all")
    for item in report.errors[:_SHOWN]:
        print(f"penstock: {item['facts']}:{item['place']}: {item['message']}", file=sys.stderr)
    if report.failed > min(_SHOWN, len(report.errors)):
        print(f"penstock: {report.failed} rows could not be used", file=sys.stderr)
    if report.out is not None:
        print(f"\nall of it is in {report.out}")


def headline(report: FleetReport) -> str:
    """The number of decisions, the change, and the bytes that would be deleted."""
    lines = [f"{counted(report.streams, 'stream')} decided in {report.seconds:.1f} s"]
    if report.change is not None:
        lines.append(f"change: {report.sentence}; it reaches {counted(report.reached, 'stream')}")
    lines += [f"refused by {item['streams']:,} of them: {item['message']}" for item in report.refused]
    for label, side in (("today", report.today), ("with the change", report.change)):
        if side is not None:
            total = side.total
            events = "" if total.uncounted else f", {counted(total.events, 'event')}"
            lines.append(f"{label}: {format_size(total.bytes)}{events} would go from {counted(total.losing, 'stream')}")
    return "\n".join(lines)


def hurt_lines(side: Side) -> list[str]:
    """A line for each subscriber that loses data or is dropped, and for held data and deleted streams."""
    total = side.total
    found = [
        f"{item['subscriber']} loses {format_size(item['bytes'])} unread "
        f"in {counted(item['streams'], 'stream')}, by {item['rule']}"
        for item in side.hurt[:_SHOWN]
    ]
    found += [
        f"{item['subscriber']} is dropped from {counted(item['streams'], 'stream')}, by {item['rule']}"
        for item in side.dropped[:_SHOWN]
    ]
    if total.held_bytes:
        found.append(f"holds keep {format_size(total.held_bytes)}")
    if total.deleted:
        found.append(f"{total.deleted:,} unused streams would be deleted")
    return found


def _table(report: FleetReport, by: str) -> tuple[list[str], list[list[Any]]]:
    name = {"scope": "scopes", "day": "days", "rule": "rules"}[by]
    today = getattr(report.today, name)
    change = None if report.change is None else getattr(report.change, name)
    keys = sorted({*today, *(change or ())})
    last = today if change is None else change
    keys.sort(key=lambda key: -(last[key].bytes if key in last else 0))
    if by == "day":
        # The days with the most bytes, in order of time.
        keys = sorted(keys[:_SHOWN]) + keys[_SHOWN:]
    columns = [by, "losing", "goes"] if change is None else [by, "losing", "today goes", "with the change"]
    rows = []
    for key in keys:
        sizes = [format_size(side[key].bytes) if key in side else "0 B" for side in (today, change) if side is not None]
        rows.append([key, last[key].losing if key in last else 0, *sizes])
    return columns, rows
