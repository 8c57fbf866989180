"""``penstock scope``."""

from __future__ import annotations

import typer

from penstock.app.cli.common.loss import FINAL, Loss, confirm, done, lost_fields
from penstock.app.cli.common.options import ReasonOption, YesOption
from penstock.app.cli.common.output import print_rows, say
from penstock.app.cli.common.target import ControllerOption, DataOption, JsonOption, ScopeArgument, open_target
from penstock.app.cli.common.words import document_words
from penstock.codec.control.policy_document import encode_document
from penstock.model.errors import NotEmptyError
from penstock.model.names import check_name

app = typer.Typer(help="Create, list and delete scopes. A scope is a namespace of streams.", no_args_is_help=True)


@app.command()
def create(
    scope: ScopeArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Create a scope.

    \b
    penstock scope create demo
    """
    check_name("scope", scope)
    with open_target(controller, data, create=True) as store:
        store.create_scope(scope)
    say(f"created scope {scope}", as_json=json, scope=scope)


@app.command("list")
def list_scopes(controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False) -> None:
    """List all scopes.

    \b
    penstock scope list
    """
    with open_target(controller, data) as store:
        scopes = list(store.scopes())
    print_rows(["scope"], [[scope] for scope in scopes], as_json=json)


@app.command()
def delete(
    scope: ScopeArgument,
    yes: YesOption = False,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Delete an empty scope and its policy.

    Shows the policy and asks for confirmation. Without a terminal, it refuses unless --yes is given.

    \b
    penstock scope delete demo --reason "moved to shop"
    """
    with open_target(controller, data, why=reason) as store:
        # Check first: otherwise the command would ask, and then fail after a yes.
        if store.streams(scope) or store.reader_groups(scope) or store.tables(scope):
            raise NotEmptyError(
                "only an empty scope can be deleted; this one has streams, reader groups or tables", scope=scope
            )
        document = encode_document(store.policy(scope).get())
        facts = {"data": "none: only an empty scope can be deleted", "policy": document_words(document), "undo": FINAL}
        loss = Loss(action=f"delete scope {scope}", facts=facts, fields={"policy": document})
        confirm(loss, yes=yes, as_json=json)
        store.delete_scope(scope)
    say(done(f"deleted scope {scope}", loss), as_json=json, scope=scope, **lost_fields(loss))
