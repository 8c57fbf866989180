"""``penstock txn``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.app.cli.common.loss import FINAL, Loss, confirm, done, lost_fields
from penstock.app.cli.common.options import ReasonOption, YesOption
from penstock.app.cli.common.output import print_answer, print_json, print_rows, say
from penstock.app.cli.common.target import ControllerOption, DataOption, JsonOption, StreamArgument, open_target
from penstock.app.cli.common.words import moment
from penstock.core.units import counted, format_duration, format_size
from penstock.model.answers.transactions import TransactionDescription
from penstock.model.errors import TransactionStateError
from penstock.ports.control.transactions import OpenTransaction, TransactionStatus
from penstock.storage.machine.clock import RealClock

app = typer.Typer(
    help="Transactions: events that become readable together, or not at all.",
    no_args_is_help=True,
)

TransactionArgument = Annotated[
    str, typer.Argument(metavar="ID", show_default=False, help="As `penstock txn list` prints it.")
]


@app.command("list")
def list_transactions(
    stream: StreamArgument,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """List the transactions of a stream that have not ended: their age, lease, writer and bytes.

    Open ones wait for their writer, and are aborted when their lease ends. Decided ones are being merged or removed.

    \b
    penstock txn list demo/clicks
    """
    with open_target(controller, data) as store:
        of = store.stream(stream)
        found = list(of.open_transactions())
        sizes = [_size(of.describe_transaction(item.id)) for item in found]
    now_ms = RealClock().now_ms()
    if json:
        for item, size in zip(found, sizes, strict=True):
            print_json({**_fields(item), "bytes": size})
        return
    rows = [
        [
            str(item.id),
            item.state.value,
            "unknown" if item.begun_ms is None else format_duration(max(0, now_ms - item.begun_ms)),
            _lease(item, now_ms),
            _writer(item.writer, item.batch, shared=item.shared),
            format_size(size),
        ]
        for item, size in zip(found, sizes, strict=True)
    ]
    print_rows(["transaction", "state", "age", "lease", "writer", "size"], rows, as_json=False)


def _size(found: TransactionDescription) -> int:
    return sum(found.bytes.values())


def _fields(item: OpenTransaction) -> dict[str, object]:
    return {
        "transaction": str(item.id),
        "state": item.state.value,
        "epoch": item.epoch,
        "begun_ms": item.begun_ms,
        "expires_ms": item.expires_ms,
        "deadline_ms": item.deadline_ms,
        "writer": item.writer,
        "batch": item.batch,
        "shared": item.shared,
    }


def _lease(item: OpenTransaction, now_ms: int) -> str:
    if item.state is not TransactionStatus.OPEN:
        return "decided"
    left_ms = item.expires_ms - now_ms
    return f"{format_duration(left_ms)} left" if left_ms > 0 else "ended"


def _writer(writer: str, batch: int | None, *, shared: bool) -> str:
    known = writer or ("several" if shared else "unknown")
    return known if batch is None else f"{known}, batch {batch}"


@app.command()
def describe(
    stream: StreamArgument,
    transaction: TransactionArgument,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print one transaction: its state, what it waits for, and its bytes by segment; also if it ended within a day.

    \b
    penstock txn describe demo/clicks 00000000-0000-0000-0000-000000000001
    """
    with open_target(controller, data) as store:
        found = store.stream(stream).describe_transaction(transaction)
    print_answer(found, _words, as_json=json)


def _words(found: TransactionDescription) -> dict[str, object]:
    facts: dict[str, object] = {
        "transaction": f"{found.transaction} of {found.stream}",
        "state": found.state,
        "waits for": found.waits_for,
        "epoch": found.epoch,
    }
    if found.expires_ms is not None and found.deadline_ms is not None:
        facts["begun"] = "unknown" if found.begun_ms is None else moment(found.begun_ms)
        facts["lease ends"] = f"{moment(found.expires_ms)} unless renewed, {moment(found.deadline_ms)} in any case"
        facts["writer"] = _writer(found.writer, found.batch, shared=found.shared)
        facts["data"] = [f"segment {segment}: {format_size(size)}" for segment, size in found.bytes.items()]
    return facts


@app.command()
def abort(
    stream: StreamArgument,
    transaction: TransactionArgument,
    yes: YesOption = False,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Abort an open transaction of any writer. Its events are dropped, and its writer cannot commit any more.

    Shows what is lost and asks. An abandoned transaction needs no abort: it is aborted when its lease ends. One that is
    committed is refused.

    \b
    penstock txn abort demo/clicks 00000000-0000-0000-0000-000000000001
    """
    with open_target(controller, data, why=reason) as store:
        of = store.stream(stream)
        found = of.describe_transaction(transaction)
        if found.state in (TransactionStatus.COMMITTING.value, TransactionStatus.COMMITTED.value):
            raise TransactionStateError(
                "nothing was changed: the transaction is committed", txn=found.transaction, state=found.state
            )
        loss = _loss(found) if found.state == TransactionStatus.OPEN.value else None
        confirm(loss, yes=yes, as_json=json)
        of.abort_transaction(transaction)
    message = f"transaction {found.transaction} of {found.stream} is aborted"
    say(done(message, loss), as_json=json, stream=found.stream, transaction=found.transaction, **lost_fields(loss))


def _loss(found: TransactionDescription) -> Loss:
    size = _size(found)
    facts = {
        "data": f"{format_size(size)} in {counted(len(found.bytes), 'segment')}",
        "writer": _writer(found.writer, found.batch, shared=found.shared),
        "undo": FINAL,
    }
    fields = {"bytes": size, "writer": found.writer} | ({} if found.batch is None else {"batch": found.batch})
    return Loss(action=f"abort transaction {found.transaction} of {found.stream}", facts=facts, fields=fields)
