"""``penstock approval``: requests for the approval of a second identity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from penstock.app.cli.common.options import ReasonOption
from penstock.app.cli.common.output import print_json, print_rows
from penstock.app.cli.common.policy_options import (
    LevelArgument,
    ScopeOption,
    ServerOption,
    target_in_words,
    target_of,
)
from penstock.app.cli.common.target import ControllerOption, DataOption, JsonOption, open_target
from penstock.app.cli.common.words import moment
from penstock.model.answers.approvals import ApprovalRequest
from penstock.model.errors import InvalidArgumentError

app = typer.Typer(
    help="Requests for the approval of a second identity (four eyes).",
    no_args_is_help=True,
)

RequestArgument = Annotated[str, typer.Argument(metavar="REQUEST", show_default=False)]


ActionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--action",
        metavar="ACTION",
        help="delete, erase, truncate, release or shorten; may be given again.",
        show_default=False,
    ),
]
NothingOption = Annotated[bool, typer.Option("--nothing", help="No action needs approval at this level.")]


@app.command()
def require(
    stream: LevelArgument = None,
    action: ActionsOption = None,
    nothing: NothingOption = False,
    scope: ScopeOption = None,
    server: ServerOption = False,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Set which actions need the approval of a second identity on a stream, in a scope, or in the whole store.

    The given actions replace those of this level; the actions of the levels above are added. Without an action, print
    the actions that need approval. Requiring less needs an approval itself. This needs a server with --auth.

    \b
    penstock approval require --scope crm --action delete --action shorten
    penstock approval require --scope crm
    """
    target = target_of(stream, scope, server)
    if nothing and action:
        raise InvalidArgumentError("give --action or --nothing, not both")
    with open_target(controller, data, why=reason) as store:
        if action or nothing:
            store.approvals().require(target, action or [])
        found = store.approvals().required(target)
    if json:
        print_json({"actions": list(found)})
    else:
        print(f"{target_in_words(target)}: {', '.join(found) or 'nothing needs approval'}")


@app.command("list")
def list_requests(
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print the requests, oldest first. Those that ended are listed for 30 days.

    \b
    penstock approval list
    """
    with open_target(controller, data) as store:
        found = store.approvals().list()
    if json:
        for request in found:
            print_json(request)
        return
    rows = [
        [item.id, item.action, _on(item), item.requested_by, moment(item.requested_ms), item.state, item.decided_by]
        for item in found
    ]
    print_rows(["request", "action", "on", "requested by", "since", "state", "decided by"], rows, as_json=False)


@app.command()
def show(
    request: RequestArgument,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print a request: exactly what an approval performs, who requested it, and why.

    \b
    penstock approval show 3f0c9a1d2b4e5f60
    """
    with open_target(controller, data) as store:
        found = store.approvals().show(request)
    if json:
        print_json(found)
        return
    lines = {
        "state": found.state,
        "requested by": found.requested_by,
        "why": found.why,
        "since": moment(found.requested_ms),
        "expires": moment(found.expires_ms),
        **arguments_in_words(found.arguments),
        "decided by": found.decided_by,
        "decided why": found.decided_why,
        "failure": found.failure,
    }
    print(f"request {found.id}: {found.action} {_on(found)}")
    for name, value in lines.items():
        if value != "":
            print(f"  {name}: {value}")


def arguments_in_words(arguments: Mapping[str, object]) -> dict[str, object]:
    """Arguments for people, without those that are None: lists with commas, and times (``due_ms``) as dates (``due``)."""
    found: dict[str, object] = {}
    for name, value in arguments.items():
        if name.endswith("_ms") and isinstance(value, int):
            found[name.removesuffix("_ms")] = moment(value)
        elif isinstance(value, list):
            found[name] = ", ".join(str(item) for item in value)
        elif value is not None:
            found[name] = value
    return found


@app.command()
def approve(
    request: RequestArgument,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Approve the request of another identity. The store performs the action at once.

    Look at the request first: `penstock approval show`. Needs the right to approve on the stream or scope.

    \b
    penstock approval approve 3f0c9a1d2b4e5f60 --reason "checked with legal"
    """
    with open_target(controller, data, why=reason) as store:
        _print_decided(store.approvals().approve(request, why=reason), json=json)


@app.command()
def refuse(
    request: RequestArgument,
    reason: ReasonOption,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Refuse the request of another identity. Needs the right to approve on the stream or scope.

    \b
    penstock approval refuse 3f0c9a1d2b4e5f60 --reason "the case is still open"
    """
    with open_target(controller, data, why=reason) as store:
        _print_decided(store.approvals().refuse(request, why=reason), json=json)


@app.command()
def withdraw(
    request: RequestArgument,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Withdraw your own request.

    \b
    penstock approval withdraw 3f0c9a1d2b4e5f60
    """
    with open_target(controller, data, why=reason) as store:
        _print_decided(store.approvals().withdraw(request, why=reason), json=json)


def _on(request: ApprovalRequest) -> str:
    return request.target or "the whole store"


def _print_decided(request: ApprovalRequest, *, json: bool) -> None:
    if json:
        print_json(request)
        return
    failure = f": {request.failure}" if request.failure else ""
    print(f"request {request.id} to {request.action} {_on(request)} is {request.state}{failure}")
