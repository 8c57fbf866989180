"""``penstock retention``."""

from __future__ import annotations

import json as jsonlib
import shlex
import shutil
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.audit import audit
from penstock.app.cli.common.loss import confirm, confirm_lock, lost_fields
from penstock.app.cli.common.options import AS_OF, AT, FACTS, PNG, SINCE, ReasonOption, YesOption
from penstock.app.cli.common.output import print_answer, print_facts, print_json, print_rows, say
from penstock.app.cli.common.policy_options import (
    LevelArgument,
    PolicyChange,
    ScopeOption,
    ServerOption,
    takes_policy,
    target_in_words,
    target_of,
)
from penstock.app.cli.common.positions import cut_at, position_of
from penstock.app.cli.common.target import ControllerOption, DataOption, JsonOption, StreamArgument, open_target
from penstock.app.cli.common.words import (
    cut_words,
    decision_words,
    forecast_words,
    moment,
    parse_moment,
    policy_rows,
    policy_value,
    reclaim_words,
)
from penstock.app.cli.planned_facts import plan_facts
from penstock.app.cli.plans import Plan, loss_of, plan_change
from penstock.app.cli.policies import as_fields, sentence
from penstock.app.cli.upkeep.evidence import certificate
from penstock.codec.control.effective_policy import encode_effective
from penstock.codec.control.policy_document import BY_PATH, encode_document, value_of
from penstock.core.policies.levels import pravega_view, remarks, resolve, with_value
from penstock.core.policies.locks import lock_of
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.retention import EMPTY, INHERIT, EffectivePolicy, PolicyDocument, PolicyTarget
from penstock.storage.machine.clock import RealClock

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Store

app = typer.Typer(
    help="Retention: what a stream keeps and why, what would be deleted, and what was freed.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="""\
\b
Sizes: KB, MB, GB, TB count by 1000; KiB, MiB, GiB, TiB by 1024, and so do a bare k, m, g, t.
Times: 30s, 10m (minutes), 12h, 7d, 2w. Months are not a unit.

"unlimited" lifts a limit, "inherit" leaves a field to the next level: the stream decides, else its scope,
else the server. docs/formats/policy.md has every field.
""",
)

_PICTURES = (".png", ".svg", ".pdf")


@app.command()
def show(
    stream: LevelArgument = None,
    scope: ScopeOption = None,
    server: ServerOption = False,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print the policy in one sentence, and each value with the level that sets it.

    \b
    penstock retention show demo/clicks
    penstock retention show --scope demo
    """
    target = target_of(stream, scope, server)
    with open_target(controller, data) as store:
        document = level(store, target).get()
        unreadable = ""
        if isinstance(target, StreamName):
            # Only the store knows how often it applies its rules, and whether it can read them.
            answer = store.stream(str(target)).retention.plan()
            policy, unreadable, said = answer.policy, answer.unreadable, answer.sentence
        else:
            policy = _applied(store, target)
            said = sentence(policy)
    found = [*([unreadable] if unreadable else []), *remarks(policy)]
    if json:
        facts: dict[str, Any] = {
            "target": target_in_words(target),
            "document": encode_document(document),
            "effective": encode_effective(policy),
            "sentence": said,
            "remarks": found,
            "retention": as_fields(pravega_view(document)),
        }
        print_facts(facts, as_json=True)
        return
    who = "" if isinstance(target, StreamName) else "streams without a policy of their own are "
    print(f"{target_in_words(target)}: {who}{said}")
    for remark in found:
        print(f"note: {remark}")
    print_rows(["field", "value", "from"], policy_rows(policy), as_json=False)


def _applied(store: Store, target: PolicyTarget) -> EffectivePolicy:
    """What applies to the stream; for a level above, what applies to streams without a policy of their own."""
    if isinstance(target, StreamName):
        return store.stream(str(target)).retention.effective()
    server = store.policy(None).get()
    return resolve(EMPTY, EMPTY if target is None else store.policy(target).get(), server)


def level(store: Store, target: PolicyTarget) -> Any:
    """The face of a level's policy."""
    return store.stream(str(target)).retention if isinstance(target, StreamName) else store.policy(target)


@app.command("set")
@takes_policy
def set_policy(
    change: PolicyChange,
    stream: LevelArgument = None,
    scope: ScopeOption = None,
    server: ServerOption = False,
    yes: YesOption = False,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Change the policy of a stream, a scope or the server. Fields that are not given stay as they are.

    If data would be deleted now, shows it and asks for confirmation. Without a terminal, it refuses unless --yes is
    given.

    \b
    penstock retention set demo/clicks --min-age 7d --min-bytes 50GB --max-age 30d
    penstock retention set --scope demo --backlog-bytes 10GB --on-exceed hold
    penstock retention set demo/clicks --policy policy.json --yes
    penstock retention set demo/clicks --type size --min 10MB --max 100MB

    Sizes: KB, MB, GB by 1000; KiB, MiB, GiB and a bare k, m, g by 1024. Times: 30s, 10m (minutes), 12h, 7d, 2w.
    """
    target = target_of(stream, scope, server)
    if change.is_empty:
        raise InvalidArgumentError(
            "name the change, for example --min-age 7d, --policy FILE, --type size --min 10MB, or --none"
        )
    change.check(target)
    with open_target(controller, data, why=reason) as store:
        document = level(store, target).get()
        _put(store, target, document, change.apply(document), action="set", yes=yes, json=json)


@app.command()
def unset(
    stream: LevelArgument = None,
    scope: ScopeOption = None,
    server: ServerOption = False,
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--field", metavar="FIELD", help="Only this field, for example retain.max_age_s; may be given again."
        ),
    ] = None,
    yes: YesOption = False,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Leave the policy, or some of its fields, to the next level. Shows losses and asks, as set does.

    \b
    penstock retention unset demo/clicks --field retain.max_age_s
    """
    target = target_of(stream, scope, server)
    for path in field or ():
        if path not in BY_PATH:
            raise InvalidArgumentError("no such field of a policy", field=path, known=", ".join(BY_PATH))
    with open_target(controller, data, why=reason) as store:
        document = level(store, target).get()
        changed = document if field else EMPTY
        for path in field or ():
            changed = with_value(changed, path, INHERIT)
        _put(store, target, document, changed, action="unset", yes=yes, json=json)


def _put(
    store: Store,
    target: PolicyTarget,
    before: PolicyDocument,
    after: PolicyDocument,
    *,
    action: str,
    yes: bool,
    json: bool,
) -> None:
    """Show, ask, set, report. An empty change is set too: it is then in force, whatever happened meanwhile."""
    plan = plan_change(store, target, before, after)
    loss = loss_of(plan, action, target)
    confirm(loss, yes=yes, as_json=json)
    confirm_lock(target_in_words(target), before, after, yes=yes, as_json=json)
    level(store, target).set(after)
    policy = _applied(store, target)
    # For a stream the store has returned it already, with how often it applies its rules.
    said = plan.sentence or sentence(policy)
    says = f"{target_in_words(target)}: {said}"
    fields: dict[str, Any]
    if isinstance(target, StreamName):
        fields = {"stream": str(target), "retention": as_fields(pravega_view(after))}
    else:
        fields = {"scope": target} if target is not None else {"server": True}
    undo = None if before == after or lock_of(before) != lock_of(after) else _undo(target, before)
    facts = {"document": encode_document(after), "sentence": said, "plan": plan.as_json(), **lost_fields(loss)}
    facts["undo"] = undo
    say(says, as_json=json, **fields, **facts)
    if not json:
        for remark in remarks(policy):
            print(f"note: {remark}")
        _say_changes(before, after)
        if undo is not None:
            print(f"undo: {undo}")
        if loss is not None:
            print("the next cycle deletes:", *loss.lines, sep="\n")


def _undo(target: PolicyTarget, before: PolicyDocument) -> str:
    """The command that restores the old policy. Data that a cycle has deleted meanwhile stays deleted."""
    where = str(target) if isinstance(target, StreamName) else "--server" if target is None else f"--scope {target}"
    if before == EMPTY:
        return f"penstock retention unset {where}"
    return f"echo {shlex.quote(jsonlib.dumps(encode_document(before)))} | penstock retention set {where} --policy -"


def _say_changes(before: PolicyDocument, after: PolicyDocument) -> None:
    for path in BY_PATH:
        was, now = value_of(before, path), value_of(after, path)
        if was != now:
            shown = ["inherited" if value is INHERIT else policy_value(path, _plain(value)) for value in (was, now)]
            print(f"  {path}: {shown[0]} -> {shown[1]}")


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


@app.command()
@takes_policy
def plan(
    change: PolicyChange,
    stream: LevelArgument = None,
    scope: ScopeOption = None,
    server: ServerOption = False,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="TIME", help=AS_OF, show_default=False),
    ] = None,
    facts: Annotated[
        str | None,
        typer.Option(
            "--facts", metavar="FILE", help=f"{FACTS} No store is needed. -: standard input.", show_default=False
        ),
    ] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print what a cycle would delete, now or later, with the present policy or with a change. Changes nothing.

    With --facts no store is needed: it reads one stream's facts per line and prints one decision per line, in the same
    order and in constant memory. The retention loop uses the same planner. A line that cannot be used gives an error
    object, and then the exit status is 1.

    \b
    penstock retention plan demo/clicks --as-of 7d
    penstock retention plan demo/clicks --max-age 1d
    penstock retention plan --scope demo --max-age 1d
    penstock retention plan --facts fleet.jsonl
    """
    if facts is not None:
        if stream is not None or scope is not None or server or not change.is_empty or as_of is not None:
            raise InvalidArgumentError("--facts cannot be combined with other options", facts=facts)
        raise typer.Exit(0 if plan_facts(facts) else 1)
    target = target_of(stream, scope, server)
    at_ms = None if as_of is None else parse_moment(as_of, now_ms=RealClock().now_ms())
    if not isinstance(target, StreamName) and change.is_empty:
        raise InvalidArgumentError("for a scope or the server, give the change to plan, such as --max-age 7d")
    change.check(target)
    with open_target(controller, data) as store:
        if isinstance(target, StreamName) and change.is_empty:
            found = Plan.of(str(target), store.stream(str(target)).retention.plan(at=at_ms))
        else:
            document = level(store, target).get()
            found = plan_change(store, target, document, change.apply(document), at_ms=at_ms)
    if json:
        print_json(found.as_json())
    else:
        print_facts(found.words, as_json=False)


@app.command()
def run(
    stream: StreamArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Run one retention cycle now, and print what it decided.

    \b
    penstock retention run demo/clicks
    """
    with open_target(controller, data) as store:
        decision = store.stream(stream).retention.run()
    print_answer(decision, decision_words, as_json=json)


@app.command()
def explain(
    stream: StreamArgument,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="POSITION",
            help=f"{AT} Only for this data: what holds it and until when, or when and why it was deleted.",
            show_default=False,
        ),
    ] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print what a cycle would decide now, and what keeps each byte from head to tail. Changes nothing.

    \b
    penstock retention explain demo/clicks
    penstock retention explain demo/clicks --at earliest
    """
    position = None if at is None else position_of(at, stream)
    with open_target(controller, data) as store:
        handle = store.stream(stream)
        decision = handle.retention.explain(None if position is None else cut_at(handle, position))
    print_answer(decision, decision_words, as_json=json)


@app.command()
def facts(stream: StreamArgument, controller: ControllerOption = None, data: DataOption = None) -> None:
    """Print the planner's facts about the stream as a line of JSON, for plan --facts and for penstock spark fleet.

    \b
    penstock retention facts demo/clicks
    """
    with open_target(controller, data) as store:
        print_json(store.stream(stream).retention.facts())


@app.command()
def reclaim(
    stream: StreamArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Print what disk space was freed, what is pending, why, and until when. The sum is the size of the files.

    \b
    penstock retention reclaim demo/clicks
    """
    with open_target(controller, data) as store:
        report = store.stream(stream).retention.reclaim()
    print_answer(report, reclaim_words, as_json=json)


@app.command()
def forecast(
    stream: StreamArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Print when a limit, a quota or the disk will be reached, at the recent rates.

    \b
    penstock retention forecast demo/clicks
    """
    with open_target(controller, data) as store:
        found = store.stream(stream).retention.forecast()
    print_answer(found, forecast_words, as_json=json)


@app.command()
def undo(
    stream: StreamArgument,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help=f"{SINCE} Or 2h ago. Undoes all truncations since then.",
            show_default=False,
        ),
    ] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Undo the last truncation, or all since a time, while their grace period lasts.

    One retention cycle can truncate in several steps: --since undoes all of them.

    \b
    penstock retention undo demo/clicks
    penstock retention undo demo/clicks --since 2h
    """
    since_ms = None if since is None else parse_moment(since, now_ms=RealClock().now_ms(), ago=True)
    with open_target(controller, data) as store:
        found = store.stream(stream).retention.undo_since(since_ms)
    if json:
        print_json(found)
        return
    many = "" if found.truncations == 1 else f" after {found.truncations} undone truncations"
    print(
        f"{stream} begins again at {cut_words(found.head)}{many}. "
        f"Rules leave what came back alone until {moment(found.protected_until_ms)}."
    )
    for item in found.subscribers:
        print(f"subscriber {item.name}: " + ("moved back" if item.restored else f"not moved back: {item.reason}"))
    for lost in found.not_restored:
        print(f"not restored: {lost.bytes} bytes that {lost.rule} removed at {moment(lost.at_ms)}")


@app.command()
def plot(
    stream: StreamArgument,
    png: Annotated[
        Path | None,
        typer.Option("--png", metavar="FILE", help=PNG, show_default=False),
    ] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Draw the stream over time: size, minimum, maximum, every subscriber, and what is deleted next.

    \b
    penstock retention plot demo/clicks
    penstock retention plot demo/clicks --png clicks.png
    """
    from penstock.app.plot import draw_png, draw_text, gather

    if png is not None:
        _check_picture(png)
    with open_target(controller, data) as store:
        found = gather(store, stream, now_ms=RealClock().now_ms())
    if png is not None:
        draw_png(found, png)
        say(f"saved {png}", as_json=json, png=str(png))
    elif json:
        print_json(found.as_json())
    else:
        print("\n".join(draw_text(found, width=shutil.get_terminal_size((100, 24)).columns)))


def _check_picture(path: Path) -> None:
    """Raises InvalidArgumentError where no picture can be saved there."""
    if path.suffix.lower() not in _PICTURES:
        raise InvalidArgumentError("the name of a picture must end in .png, .svg or .pdf", png=str(path))
    if not path.parent.is_dir():
        raise InvalidArgumentError("no such directory", directory=str(path.parent), png=str(path))
    if path.is_dir():
        raise InvalidArgumentError("this is a directory", png=str(path))


app.command()(audit)
app.command()(certificate)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the planner's lines.

    \b
    penstock retention schema
    """
    print(files("penstock.core").joinpath("planner.schema.json").read_text(), end="")
