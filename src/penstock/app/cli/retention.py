"""``penstock retention``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.app.cli.output import print_facts, print_json, say
from penstock.app.cli.policies import MaxOption, MinOption, TypeOption, as_fields, parse_policy, sentence
from penstock.app.cli.target import ControllerOption, DataOption, JsonOption, StreamArgument, open_target
from penstock.app.units import format_size
from penstock.core.retention_facts import holder_in_words
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
    print_facts(decision if json else _in_words(decision), as_json=json)


@app.command()
def explain(
    stream: StreamArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Print what a cycle would decide now, and who holds the rest. Changes nothing."""
    with open_target(controller, data) as store:
        decision = store.stream(stream).retention.explain()
    print_facts(decision if json else _in_words(decision), as_json=json)


def _in_words(decision: Mapping[str, Any]) -> dict[str, object]:
    """A decision for people: what goes, why, and who holds the rest, from head to tail."""
    facts: dict[str, object] = {"why": decision["why"], "rule": decision["rule"]}
    facts["frees"] = format_size(decision["frees_bytes"])
    if decision["truncate"]:
        facts["new head"] = _cut(decision["truncate"])
    for item in decision["evict"]:
        facts[f"evicts {item['subscriber']}"] = f"{format_size(item['bytes'])} unread, by {item['rule']}"
    ranges = decision.get("ranges", [])
    if ranges:
        facts["head to tail"] = [
            f"{format_size(item['bytes']):>8}  {holder_in_words((item['kind'] + ' ' + item['name']).strip())}"
            for item in ranges
        ]
    return facts


def _cut(cut: Mapping[str, int]) -> str:
    return "  ".join(f"{segment}:{offset}" for segment, offset in cut.items())


@app.command()
def plan(
    facts: Annotated[
        str, typer.Option("--facts", metavar="FILE|-", help="JSON Lines, one stream a line; - is standard input.")
    ],
) -> None:
    """Decide on paper: facts in, one decision a line out, in the same order. Needs no store.

    The planner is the one of the retention loop. Lines that cannot be used give an error object, and status 1 at the end.
    """
    from penstock.core.retention_json import plan_line

    if facts != "-" and not Path(facts).is_file():
        raise InvalidArgumentError("no such file of facts", facts=facts)
    failed = False
    with nullcontext(sys.stdin) if facts == "-" else Path(facts).open(encoding="utf-8") as source:
        for line in source:
            if line.strip():
                decision = plan_line(line)
                failed = failed or "error" in decision
                print_json(decision)
    raise typer.Exit(1 if failed else 0)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the planner's lines."""
    print(files("penstock.core").joinpath("planner.schema.json").read_text(), end="")
