"""``penstock group``."""

from __future__ import annotations

import typer

from penstock.app.cli.output import print_facts, print_rows, say
from penstock.app.cli.target import ControllerOption, DataOption, GroupArgument, JsonOption, ScopeArgument, open_target

app = typer.Typer(help="Reader groups: who reads together, and whose positions release data.", no_args_is_help=True)


@app.command("list")
def list_groups(
    scope: ScopeArgument,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """List the reader groups of a scope."""
    with open_target(controller, data) as store:
        names = list(store.reader_groups(scope))
    print_rows(["group"], [[f"{scope}/{name}"] for name in names], as_json=json)


@app.command()
def describe(
    group: GroupArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Say how a group is configured, and how far behind it is on each stream."""
    scope, _, name = group.partition("/")
    with open_target(controller, data) as store:
        config = store.call(lambda inner: inner.controller.get_reader_group(scope, name))
        lags = {
            str(stream): item.lag_bytes
            for stream in config.start_cuts
            for item in store.stream(str(stream)).describe().subscribers
            if item.name == config.full_name
        }
    facts = {
        "group": config.full_name,
        "id": str(config.id),
        "generation": config.generation,
        "retention": config.retention.name.lower(),
        "streams": [str(stream) for stream in config.start_cuts],
        "lag_bytes": lags if json else [f"{stream}: {lag}" for stream, lag in lags.items()] or "not a subscriber",
    }
    print_facts(facts, as_json=json)


@app.command()
def delete(
    group: GroupArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Delete a group. What it alone held back may go with the next retention cycle."""
    scope, _, name = group.partition("/")
    with open_target(controller, data) as store:
        store.call(lambda inner: inner.controller.delete_reader_group(scope, name))
    say(f"deleted reader group {group}", as_json=json, group=group)
