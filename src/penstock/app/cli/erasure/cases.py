"""``penstock erase request``, ``penstock erase cases`` and ``penstock erase case``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec import UNSET

from penstock.app.cli.common.loss import FINAL, Loss, confirm, lost_fields
from penstock.app.cli.common.options import ID, VALUES, WAIT, OwnerOption, ReasonOption, TableOption, YesOption
from penstock.app.cli.common.output import DEFERRED_STATUS, ProgressLine, print_facts, print_json, say
from penstock.app.cli.common.target import (
    ControllerOption,
    DataOption,
    JsonOption,
    StreamArgument,
    open_target,
    owner_of,
)
from penstock.app.cli.common.words import confirmed_words, moment, parse_moment, requester_words
from penstock.app.erasure.values import values_from
from penstock.codec.answers import as_json as as_json_of
from penstock.core.units import counted, format_size
from penstock.model.answers.erasure import CaseTable, ErasureCase
from penstock.model.errors import InvalidArgumentError
from penstock.storage.machine.clock import RealClock

app = typer.Typer(help="Cases: the erasure of a person's data, until it is proved.", no_args_is_help=True)

CaseArgument = Annotated[str, typer.Argument(metavar="CASE", show_default=False)]
TargetsArgument = Annotated[
    list[str],
    typer.Argument(metavar="SCOPE/STREAM|SCOPE|*...", show_default=False, help="Streams, scopes, or all streams."),
]
ValuesOption = Annotated[
    Path,
    typer.Option("--values-from", metavar="FILE", help=VALUES, show_default=False, exists=True),
]
JsonFieldOption = Annotated[
    str | None,
    typer.Option(
        "--json-field",
        metavar="PATH",
        help="Look at this field of JSON events, for example user.id or users.0.id.",
        show_default=False,
    ),
]


DueOption = Annotated[
    str | None,
    typer.Option(
        "--due",
        metavar="TIME",
        help="When it should be verified: 2026-01-31, a time, or 14d from now. Default: 30d.",
        show_default=False,
    ),
]
DigestsOption = Annotated[
    bool, typer.Option("--digests", help="Keep keyed digests in place of the values; needs --json-field.")
]


def request(
    targets: TargetsArgument,
    values: ValuesOption,
    reason: ReasonOption,
    json_field: JsonFieldOption = None,
    due: DueOption = None,
    digests: DigestsOption = False,
    case: Annotated[str | None, typer.Option("--id", metavar="ID", help=ID, show_default=False)] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help=f"{WAIT} It is then verified or deferred.")] = True,
    owner: OwnerOption = None,
    yes: YesOption = False,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Open a case: erase all events of a person, now and until the case is closed, and verify it by a second search.

    The store does all steps by itself, even after a crash. It waits while a hold keeps events (exit status 10), and
    continues when the hold ends. Matching events that arrive later are erased within seconds, until the case is closed.

    \b
    penstock erase request demo/clicks --json-field user.id --values-from ids.txt --reason "request 17" --id r17
    penstock erase case show r17
    penstock erase case close r17 --reason "answered on 3 May"
    """
    wanted = list(values_from(values))
    now_ms = RealClock().now_ms()
    due_ms = None if due is None else parse_moment(due, now_ms=now_ms)
    if due_ms is not None and due_ms <= now_ms:
        raise InvalidArgumentError("--due is in the past; give a time by which the case should be verified", due=due)
    where = ", ".join(targets)
    facts = {"events": f"all that match {counted(len(wanted), 'value')}, until the case is closed", "undo": FINAL}
    loss = Loss(action=f"erase a person's events of {where}", facts=facts, fields={"values": len(wanted)})
    confirm(loss, yes=yes, as_json=json)
    with ProgressLine(quiet=json) as line, open_target(controller, data, why=reason) as store:
        cases = store.cases()
        found = cases.open(
            targets,
            wanted,
            who=owner_of(owner),
            why=reason,
            json_field=json_field,
            due=due_ms,
            keep_values=not digests,
            case=case,
        )
        if wait:
            found = cases.wait(found.case, until_deferred=True, progress=lambda state: line.show(line_of(state)))
    _print(found, as_json=json, loss=loss)
    if found.state == "deferred":
        raise typer.Exit(DEFERRED_STATUS)


def line_of(state: ErasureCase) -> str:
    """One line of progress."""
    if state.progress is UNSET:
        return f"case {state.case}: {state.state}" + ("" if state.waits_for is UNSET else f"; waits: {state.waits_for}")
    at = state.progress
    done = f"stream {at.streams + 1} of {at.of}, {format_size(at.bytes)}"
    return f"case {state.case}: {at.phase} {at.stream}, {done}, {counted(state.events, 'event')} erased"


def list_cases(controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False) -> None:
    """Print all cases, those that are due first at the top. Overdue ones are red.

    \b
    penstock erase cases
    """
    with open_target(controller, data) as store:
        found = store.cases().list()
    if json:
        for item in found:
            print_json(item)
        return
    _print_table(found)


def _print_table(found: Sequence[ErasureCase]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold", box=None, pad_edge=False)
    for head in ("case", "state", "due", "events", "late", "targets", "who", "why"):
        table.add_column(head, no_wrap=True)
    for item in found:
        due = moment(item.due_ms) + (" OVERDUE" if item.is_overdue else "")
        cells = [
            item.case,
            state_of(item),
            due,
            item.events,
            item.late,
            " ".join(item.targets),
            requester_words(item.who, item.identity),
            item.why,
        ]
        table.add_row(*(Text(str(cell)) for cell in cells), style="red" if item.is_overdue else None)
    # People copy names from tables. So a long line runs past the edge and is neither cut nor wrapped.
    needed = Console(width=1 << 20).measure(table).maximum
    Console(width=max(needed, 1), soft_wrap=True).print(table)


def state_of(item: ErasureCase) -> str:
    """The state of a case, with what it waits for."""
    if item.holds:
        return f"{item.state} by hold {', '.join(dict.fromkeys(hold.hold for hold in item.holds))}"
    return item.state if item.waits_for is UNSET else f"{item.state}, waits: {item.waits_for}"


@app.command()
def show(
    case: CaseArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Print a case: how far it is, what it has erased, which erasures prove it, and which tables are pending.

    \b
    penstock erase case show r17
    """
    with open_target(controller, data) as store:
        found = store.cases().show(case)
    _print(found, as_json=json)


@app.command()
def wait(
    case: CaseArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Wait until a case is verified, closed or withdrawn, also while holds defer it.

    \b
    penstock erase case wait r17
    """
    with ProgressLine(quiet=json) as line, open_target(controller, data) as store:
        found = store.cases().wait(case, progress=lambda state: line.show(line_of(state)))
    _print(found, as_json=json)


@app.command()
def close(
    case: CaseArgument,
    reason: ReasonOption,
    pending_tables: Annotated[
        bool, typer.Option("--pending-tables", help="Close it even if tables still have rows of its events.")
    ] = False,
    owner: OwnerOption = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Close a verified case after a last search. Events that arrive afterwards are kept.

    Exit status 4: the case is not verified, or a table of Spark still has rows of its events.

    \b
    penstock erase case close r17 --reason "answered on 3 May"
    """
    with open_target(controller, data) as store:
        found = store.cases().close(case, who=owner_of(owner), why=reason, pending_tables=pending_tables)
    say(f"case {case} is closed; {_erased(found)}", as_json=json, **as_json_of(found))


@app.command("confirm-table")
def confirm_table(
    case: CaseArgument,
    stream: StreamArgument,
    table: TableOption,
    reason: ReasonOption,
    owner: OwnerOption = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Record that you have checked a table of a deleted stream, and that it has no rows of the person's events.

    The store verifies nothing: the case shows the table as confirmed by you. Exit status 4: nothing of a deleted stream is
    pending there, or the stream can be restored.

    \b
    penstock erase case confirm-table r17 crm/old --table "delta /lake/old" --reason "table was dropped"
    """
    with open_target(controller, data, why=reason) as store:
        found = store.cases().confirm_table(case, table, stream=stream, who=owner_of(owner), why=reason)
    (one,) = [item for item in found.tables if (item.stream, item.table) == (stream, table)]
    say(f"table {table} of {stream}: {table_words(one)}", as_json=json, **as_json_of(found))


@app.command()
def withdraw(
    case: CaseArgument,
    reason: ReasonOption,
    owner: OwnerOption = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """End a case without its proof. What it has erased stays erased.

    \b
    penstock erase case withdraw r17 --reason "wrong person"
    """
    with open_target(controller, data) as store:
        found = store.cases().withdraw(case, who=owner_of(owner), why=reason)
    say(f"case {case} is withdrawn; {_erased(found)}", as_json=json, **as_json_of(found))


def table_words(item: CaseTable) -> str:
    """The state of a table, with who has confirmed what."""
    said = dict.fromkeys(confirmed_words(one) for one in item.confirmed)
    return "; ".join([item.state, *said])


def _erased(found: ErasureCase) -> str:
    late = f", {found.late} of them late" if found.late else ""
    return f"{counted(found.events, 'event')} erased{late}"


def _print(found: ErasureCase, *, as_json: bool, loss: Loss | None = None) -> None:
    if as_json:
        print_json({**as_json_of(found), **lost_fields(loss)})
        return
    facts: dict[str, object] = {
        "case": found.case,
        "state": state_of(found),
        "due": moment(found.due_ms) + (" OVERDUE" if found.is_overdue else ""),
        "opened": f"{moment(found.opened_ms)} by {requester_words(found.who, found.identity)}: {found.why}",
        "targets": list(found.targets),
        "erased": f"{_erased(found)}, {format_size(found.bytes)}",
        "erasures": list(found.erasures) or "none",
    }
    if found.verified_ms is not None:
        facts["verified"] = moment(found.verified_ms)
    if found.holds:
        facts["held by"] = [f"{item.hold} on {item.stream}: {item.reason} ({item.owner})" for item in found.holds]
    if found.tables:
        facts["tables"] = [f"{item.table} of {item.stream}: {table_words(item)}" for item in found.tables]
    if found.defects:
        facts["not searched"] = [item.why for item in found.defects]
    if found.ended is not None:
        facts["ended"] = (
            f"{moment(found.ended.at_ms)} by {requester_words(found.ended.who, found.ended.identity)}: {found.ended.why}"
        )
        if found.ended.tables:
            facts["pending at its end"] = list(found.ended.tables)
    if found.is_overdue:
        typer.secho(f"case {found.case} is overdue", fg="red", err=True)
    print_facts({**facts, **(loss.facts if loss is not None else {})}, as_json=False)
