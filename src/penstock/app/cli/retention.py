"""``penstock retention``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.app.cli.output import print_facts, say
from penstock.app.cli.policies import MaxOption, MinOption, TypeOption, as_fields, parse_policy, sentence
from penstock.app.cli.target import ControllerOption, DataOption, JsonOption, StreamArgument, open_target
from penstock.model.errors import InvalidArgumentError

app = typer.Typer(help="What a stream keeps, what would go, and who holds it.", no_args_is_help=True)


@app.command()
def show(
    stream: StreamArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Print the policy, as one sentence."""
    with open_target(controller, data) as store:
        policy = store.stream(stream).retention.get()
    if json:
        print_facts({"stream": stream, "retention": as_fields(policy), "sentence": sentence(policy)}, as_json=True)
    else:
        print(f"{stream}: {sentence(policy)}")


@app.command("set")
def set_policy(
    stream: StreamArgument,
    kind: TypeOption = None,
    minimum: MinOption = None,
    maximum: MaxOption = None,
    none: Annotated[bool, typer.Option("--none", help="Drop the policy: keep for ever.")] = False,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Set the policy. It takes effect with the next cycle."""
    policy = parse_policy(kind, minimum, maximum)
    if (policy is None) != none:
        raise InvalidArgumentError("give --type with --min or --max, or --none")
    with open_target(controller, data) as store:
        store.stream(stream).retention.set(policy)
    say(f"{stream}: {sentence(policy)}", as_json=json, stream=stream, retention=as_fields(policy))


@app.command()
def run(
    stream: StreamArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Run one retention cycle now, and print what it decided."""
    with open_target(controller, data) as store:
        decision = store.stream(stream).retention.run()
    print_facts(decision, as_json=json)


@app.command()
def explain(
    stream: StreamArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Print what a cycle would decide now, and who holds the rest. Changes nothing."""
    with open_target(controller, data) as store:
        decision = store.stream(stream).retention.explain()
    print_facts(decision, as_json=json)
