"""``penstock erase``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import UNSET

from penstock.app.cli.common.loss import FINAL, Loss, amount, confirm
from penstock.app.cli.common.options import (
    ID,
    VALUES,
    DryRunOption,
    OwnerOption,
    ReasonOption,
    TableOption,
    YesOption,
)
from penstock.app.cli.common.output import NOT_TRUE_STATUS, ProgressLine, print_json, print_rows, say
from penstock.app.cli.common.target import (
    ControllerOption,
    DataOption,
    JsonOption,
    StreamArgument,
    StreamFilterArgument,
    open_target,
    owner_of,
)
from penstock.app.cli.common.words import confirmed_words, moment, requester_words
from penstock.app.cli.erasure import cases, ledger
from penstock.app.erasure.values import find_values, positions_from, values_from
from penstock.codec.answers import as_json
from penstock.core.segments.erasure_receipt import NOT_EXAMINED
from penstock.core.units import counted, format_size
from penstock.model.answers.erasure import Erasure, ErasureTable
from penstock.model.errors import InvalidArgumentError, NotFoundError
from penstock.model.segments import SegmentId

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Store

app = typer.Typer(
    help="Erasure: blank events in place, permanently, with a receipt that anyone can verify.",
    no_args_is_help=True,
)

IdArgument = Annotated[str, typer.Argument(metavar="ID", show_default=False)]
ErasureIdOption = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="ID",
        help=f"{ID} A repeat with the same or fewer events returns the receipt.",
        show_default=False,
    ),
]


@app.command()
def run(
    stream: StreamArgument,
    positions: Annotated[
        Path,
        typer.Option(
            "--positions",
            metavar="FILE",
            help="File with the events, one SEGMENT:OFFSET per line.",
            show_default=False,
            exists=True,
        ),
    ],
    reason: ReasonOption,
    owner: OwnerOption = None,
    erasure: ErasureIdOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Blank the events at the given positions, in place, permanently. This cannot be undone.

    Shows what will be erased and asks for confirmation. Without a terminal, it refuses unless --yes is given.

    Positions come from a reader: the segment and offset of each event. To find events by their content, use penstock
    spark erase. If a hold covers any of the events, nothing is blanked and the exit status is 10. The erasure continues
    by itself once no hold covers them; until then it can be withdrawn.

    \b
    penstock erase run demo/clicks --positions found.txt --reason "request 17" --dry-run
    penstock erase run demo/clicks --positions found.txt --reason "request 17" --yes
    """
    wanted = [(SegmentId(segment), offset) for segment, offset in positions_from(positions)]
    with ProgressLine(quiet=json) as line, open_target(controller, data, why=reason) as store:
        erase = partial(
            store.stream(stream).erase,
            wanted,
            who=owner_of(owner),
            why=reason,
            erasure=erasure,
            progress=lambda state: line.show(state_line(state)),
        )
        if dry_run:
            found = erase(dry_run=True)
        else:
            loss = (
                None if erasure is not None and is_decided(store, erasure) else erasure_of(stream, erase(dry_run=True))
            )
            line.show("")
            confirm(loss, yes=yes, as_json=json)
            found = erase()
    if dry_run:
        say(would_erase(stream, found["events"], found["bytes"], found["holds"]), as_json=json, **found)
    else:
        print_receipt(found, as_json=json)


def is_decided(store: Store, erasure: str) -> bool:
    """Whether the id belongs to a complete request. Repeating such a request blanks nothing more."""
    try:
        return store.erasures().show(erasure).state not in ("gathering", "requested")
    except NotFoundError:
        return False


def erasure_of(stream: str, found: Mapping[str, Any]) -> Loss | None:
    """What an erasure blanks, according to its dry run; None if it blanks nothing."""
    if not found["events"]:
        return None
    facts = {"data": amount(found["bytes"], found["events"]), "undo": FINAL}
    if found.get("holds"):
        facts["holds"] = deferred_by(found["holds"])
    fields = {name: found[name] for name in ("bytes", "events")}
    return Loss(action=f"erase events of {stream}", facts=facts, fields=fields)


@app.command("list")
def list_erasures(
    stream: StreamFilterArgument = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print what was erased: in the order of the receipts, then those that are not done.

    \b
    penstock erase list
    """
    with open_target(controller, data) as store:
        found = store.erasures(stream).list()
    if json:
        for item in found:
            print_json(item)
        return
    heads = ["erasure", "stream", "state", "events", "bytes", "who", "why", "when"]
    print_rows(heads, [_row(item) for item in found], as_json=False)


def _row(item: Erasure) -> list[object]:
    receipt = item.receipt
    # Before the receipt, the erased events are not counted.
    events, size = ("", "") if receipt is None else (receipt["where"]["events"], format_size(receipt["where"]["bytes"]))
    when = item.asked_ms if receipt is None else receipt["finished_ms"]
    state = state_of(item)
    asked = item.asked
    who = requester_words(asked["who"], item.identity)
    return [item.erasure, item.stream, state, events, size, who, asked["why"], moment(when)]


def state_of(item: Erasure) -> str:
    """The state of an erasure, with what it waits for or who withdrew it."""
    if item.deferred is not UNSET:
        holds = [as_json(hold) for hold in item.deferred.holds]
        return f"{deferred_by(holds)} since {moment(item.deferred.since_ms)}"
    if item.withdrawn is not UNSET:
        withdrawn = item.withdrawn
        return f"withdrawn by {requester_words(withdrawn.who, withdrawn.identity)}: {withdrawn.why}"
    return item.state if item.waits_for is UNSET else f"waiting: {item.cause}; {item.waits_for}"


def deferred_by(holds: Sequence[Mapping[str, Any]]) -> str:
    return f"deferred by hold {', '.join(item['hold'] for item in holds)}"


def would_erase(stream: str, events: int, size_bytes: int, holds: Sequence[Mapping[str, Any]]) -> str:
    """What a dry run found."""
    found = f"would erase {counted(events, 'event')} of {stream}, {format_size(size_bytes)}"
    return f"{found}; {deferred_by(holds)}" if holds else found


@app.command()
def withdraw(
    erasure: IdArgument,
    reason: ReasonOption,
    owner: OwnerOption = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Withdraw an erasure that a hold defers, or whose positions are incomplete. It has erased nothing.

    Its id cannot be used again. A decided erasure cannot be withdrawn (exit status 4).

    \b
    penstock erase withdraw 5b0c5c2e6a1b4d0f --reason "wrong user"
    """
    with open_target(controller, data) as store:
        found = store.erasures().withdraw(erasure, who=owner_of(owner), why=reason)
    say(f"erasure {erasure} of {found.stream} is {state_of(found)}", as_json=json, **as_json(found))


@app.command("confirm-table")
def confirm_table(
    erasure: IdArgument,
    table: TableOption,
    reason: ReasonOption,
    owner: OwnerOption = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Record that you have checked a table of a deleted stream, and that it has no rows of the erased events.

    The store verifies nothing: it shows the table as confirmed by you. The receipt does not change. Exit status 4: the
    stream exists or can be restored.

    \b
    penstock erase confirm-table 5b0c5c2e6a1b4d0f --table "delta /lake/old" --reason "table was dropped"
    """
    with open_target(controller, data, why=reason) as store:
        found = store.erasures().confirm_table(erasure, table, who=owner_of(owner), why=reason)
    (one,) = [] if found.tables is UNSET else [item for item in found.tables if item.table == table]
    say(f"table {table} of {found.stream}: {_table_words(one)}", as_json=json, **as_json(found))


@app.command()
def show(
    erasure: IdArgument,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print the receipt of an erasure. With --json, also its state and its request.

    \b
    penstock erase show 5b0c5c2e6a1b4d0f
    """
    with open_target(controller, data) as store:
        found = store.erasures().show(erasure)
    if json:
        print_json(found)
    elif found.receipt is None:
        print(f"erasure {erasure} of {found.stream}: {state_of(found)}; no receipt")
    else:
        print_receipt(found.receipt, as_json=False)
        if found.tables is not UNSET and found.tables:
            print("tables:")
            for item in found.tables:
                print(f"  {item.table}: {_table_words(item)}")


def _table_words(item: ErasureTable) -> str:
    """The state of a table: what was deleted, or who has confirmed it."""
    if item.at_ms is not None:
        return f"{item.state}, {counted(item.rows or 0, 'row')} deleted {moment(item.at_ms)}"
    return item.state if item.confirmed is UNSET else f"{item.state}; {confirmed_words(item.confirmed)}"


@app.command()
def verify(
    erasure: IdArgument,
    values: Annotated[
        Path | None,
        typer.Option(
            "--values-from",
            metavar="FILE",
            help=f"{VALUES} Each has 4 bytes or more. Searches every file below --data; stop its server first.",
            show_default=False,
            exists=True,
        ),
    ] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Prove a receipt by a scan: every listed event is blank, and no other byte of its chunks has changed.

    With --values-from all files of the data directory are searched: chunks, log, spare files, metadata.
    Stop the server of the directory first. Exit status 9: the receipt is wrong, or a value was found.

    \b
    penstock erase verify 5b0c5c2e6a1b4d0f
    penstock erase verify 5b0c5c2e6a1b4d0f --data ./store --values-from ids.txt
    """
    if values is not None and data is None:
        raise InvalidArgumentError(
            "files are searched below --data DIR, on the machine of the store, with its server stopped"
        )
    with ProgressLine(quiet=json) as line:
        with open_target(controller, data) as store:
            found = store.erasures().verify(erasure, progress=lambda state: line.show(state_line(state)))
        problems = list(found.problems)
        if values is not None and data is not None:
            # With the store closed, nothing is in flight, and no new file appears.
            searched = find_values(
                data, values_from(values), progress=lambda _, size: line.show(state_line({"bytes": size}))
            )
            problems += [
                f"value on line {item.value} of the list is in {item.file} at {item.position}" for item in searched
            ]
    if json:
        print_json({**found.as_json(), "holds": not problems, "problems": problems})
    else:
        print(f"read {format_size(found.bytes)} in {counted(found.chunks, 'chunk')}; {counted(found.events, 'event')}")
        for note in found.notes:
            print(f"  note: {note}")
        for problem in problems:
            print(f"  NOT TRUE: {problem}")
        if not problems:
            clean = " and no file holds any of the values" if values is not None else ""
            print(f"receipt {found.receipt['sha256'][:16]} holds: all of it is blank, nothing else has changed{clean}")
    if problems:
        raise typer.Exit(NOT_TRUE_STATUS)


def print_receipt(receipt: Mapping[str, Any], *, as_json: bool) -> None:
    """A receipt for people, or as it is."""
    if as_json:
        print_json(dict(receipt))
        return
    where = receipt["where"]
    print(f"erased {counted(where['events'], 'event')} of {receipt['stream']}, {format_size(where['bytes'])}")
    print(f"  erasure   {receipt['erasure']}")
    print(f"  by        {requester_words(receipt['who'], receipt.get('identity', UNSET))}: {receipt['why']}")
    print(f"  finished  {moment(receipt['finished_ms'])}")
    print(f"  chunks    {receipt['chunks']['count']} written anew")
    if "log_keys" in receipt:
        print(f"  log       {receipt['tiers']['log']}")
    print(f"  receipt   {receipt['sequence']}, sha256 {receipt['sha256']}")
    if NOT_EXAMINED in (receipt.get("looked_for") or {}):
        print(f"  {not_examined(receipt['looked_for'])}")
    print("what remains elsewhere:")
    for item in receipt["remains"]:
        until = f", until {moment(item['until_ms'])}" if "until_ms" in item else ""
        size = f" ({format_size(item['bytes'])})" if "bytes" in item else ""
        table = f": {item['table']}" if "table" in item else ""
        print(f"  {item['what']}{table}{size}{until}")


def not_examined(looked_for: Mapping[str, Any]) -> str:
    """A text that lists the events that could not be searched; empty: there are none."""
    found = looked_for.get(NOT_EXAMINED)
    if not found:
        return ""
    which = ", ".join(found["first"]) + (", ..." if found["events"] > len(found["first"]) else "")
    return f"NOT EXAMINED: {counted(found['events'], 'event')} nested too deeply, at {which}; they may hold a value"


def state_line(state: Mapping[str, Any]) -> str:
    """How far an erasure or a search is, on one line."""
    known = {**state, **state.get("progress", {})}
    names = ("state", "phase", "found", "pages", "segments", "of", "bytes", "waits_for")
    return "  ".join(f"{name} {known[name]}" for name in names if name in known)


app.command("request")(cases.request)
app.command("cases")(cases.list_cases)
app.add_typer(cases.app, name="case")
app.add_typer(ledger.app, name="ledger")
