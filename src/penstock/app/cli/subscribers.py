"""``penstock subscriber``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.common.loss import (
    FINAL,
    UNTIL_DELETED,
    Loss,
    amount,
    confirm,
    done,
    lost_fields,
    subscription,
    unread_words,
)
from penstock.app.cli.common.options import DryRunOption, OwnerOption, ReasonOption, YesOption
from penstock.app.cli.common.output import (
    ProgressLine,
    exit_code,
    print_error,
    print_facts,
    print_json,
    print_rows,
    say,
)
from penstock.app.cli.common.positions import position_of
from penstock.app.cli.common.target import (
    ControllerOption,
    DataOption,
    GroupArgument,
    JsonOption,
    StreamArgument,
    StreamFilterArgument,
    open_target,
)
from penstock.app.cli.common.words import cut_words, moment, most_held_first, offsets, subscriber_fields
from penstock.app.cli.groups import ResetToOption, place_to_reset, reset_group
from penstock.codec.answers import as_json
from penstock.core.units import counted, format_duration, format_size
from penstock.model.answers.subscribers import SubscriberMove
from penstock.model.errors import CorruptDataError, NotFoundError, SubscriberNotFoundError
from penstock.model.names import SYSTEM_SCOPE
from penstock.ports.control.subscribers import SubscriberInfo
from penstock.storage.machine.clock import RealClock

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Store

app = typer.Typer(
    help="Subscribers of a stream: reader groups whose unread data is kept.",
    no_args_is_help=True,
)


@app.command("list")
def list_subscribers(
    stream: StreamFilterArgument = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print each subscriber, its owner, how far it is behind, and how much data only it keeps.

    "acknowledged" is the time since the subscriber last made progress or confirmed that it had read everything. A program
    that fails at every start, or that is stuck, does not reset it.

    With --json, one object per line for metrics: held_bytes, lag_bytes, lag_events, lag_ms, since_acknowledgement_s.
    For one stream: the furthest behind first. For the whole store: the most held bytes first. Streams with damaged records
    are reported on standard error, and the exit status is 7.

    \b
    penstock subscriber list
    penstock subscriber list demo/clicks
    """
    damaged: list[CorruptDataError] = []
    with ProgressLine(quiet=json) as line, open_target(controller, data) as store:
        if stream is None:
            found = _in_store(store, damaged, line)
        else:
            found = [(stream, item) for item in store.stream(stream).subscribers()]
    now_ms = RealClock().now_ms()
    rows = [subscriber_fields(name, item, now_ms=now_ms) for name, item in found]
    if stream is None:
        rows.sort(key=most_held_first)
    else:
        rows.sort(key=lambda row: (-row["lag_bytes"], row["name"]))
    if json:
        for row in rows:
            print_json(row)
    else:
        print_subscribers(rows, has_streams=stream is None)
    for error in damaged:
        print_error(error, as_json=json)
    if damaged:
        raise typer.Exit(exit_code(damaged[0]))


def _in_store(store: Store, damaged: list[CorruptDataError], line: ProgressLine) -> list[tuple[str, SubscriberInfo]]:
    """Every subscriber with its stream. Passes over streams that are deleted meanwhile; adds an error to ``damaged`` for
    each stream or scope that cannot be read."""
    found: list[tuple[str, SubscriberInfo]] = []
    for scope in store.scopes():
        if scope == SYSTEM_SCOPE:
            continue
        try:
            names = [f"{scope}/{name}" for name in store.streams(scope)]
        except NotFoundError:
            continue
        except CorruptDataError as error:
            damaged.append(CorruptDataError(error.message, **{**error.fields, "scope": scope}))
            continue
        for name in names:
            line.show(name)
            try:
                found += [(name, item) for item in store.stream(name).subscribers()]
            except NotFoundError:
                continue
            except CorruptDataError as error:
                damaged.append(CorruptDataError(error.message, **{**error.fields, "stream": name}))
    return found


def print_subscribers(found: Sequence[Mapping[str, Any]], *, has_streams: bool) -> None:
    """Print a table of ``subscriber_fields`` in their order; ``has_streams``: with a column for the stream."""
    rows = [
        [
            *([item["stream"]] if has_streams else []),
            item["name"],
            "silent" if item["position"] is None else format_size(item["lag_bytes"]),
            "?" if item["lag_events"] is None else f"{item['lag_events']:,}",
            _age(item["lag_ms"]),
            "?" if item["held_bytes"] is None else format_size(item["held_bytes"]),
            f"{_since(item)} ago",
            item["owner"] or "?",
        ]
        for item in found
    ]
    heads = ["subscriber", "behind", "events", "oldest unread", "holds alone", "acknowledged", "owner"]
    print_rows(["stream", *heads] if has_streams else heads, rows, as_json=False)


def _age(lag_ms: int | None) -> str:
    """The age of the oldest unread event, as a lower bound. The event can be older by up to a retention cycle and by
    the time in which the store was stopped, which the retention clock does not count in full."""
    return "none" if lag_ms is None else f"at least {format_duration(lag_ms)}"


def _since(item: Mapping[str, Any]) -> str:
    return format_duration(round(item["since_acknowledgement_s"] * 1000))


@app.command()
def describe(
    stream: StreamArgument,
    name: GroupArgument,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print everything known about one subscriber.

    \b
    penstock subscriber describe demo/clicks demo/reports
    """
    with open_target(controller, data) as store:
        found = [item for item in store.stream(stream).subscribers() if item.name == name]
    if not found:
        raise SubscriberNotFoundError("no such subscriber of the stream", stream=stream, subscriber=name)
    fields = subscriber_fields(stream, found[0], now_ms=RealClock().now_ms())
    if json:
        print_facts({key: value for key, value in fields.items() if key != "stream"}, as_json=True)
        return
    position = fields["position"]
    words: dict[str, object] = {
        "subscriber": f"{name}, generation {fields['generation']}",
        "position": "has published nothing" if position is None else cut_words(position),
        "behind": f"{format_size(fields['lag_bytes'])}, {_events(fields['lag_events'])}",
        "oldest unread": _age(fields["lag_ms"]),
        "holes": str(fields["holes"]),
        "holds alone": "not known" if fields["held_bytes"] is None else format_size(fields["held_bytes"]),
        "acknowledged": f"{_since(fields)} ago, at {moment(fields['last_seen_ms'])}",
        "owner": found[0].owner or "not known",
    }
    print_facts(words, as_json=False)


def _events(count: int | None) -> str:
    return "an unknown number of events" if count is None else counted(count, "event")


@app.command()
def move(
    stream: StreamArgument,
    name: GroupArgument,
    to: ResetToOption,
    acknowledged_only: Annotated[
        bool, typer.Option("--acknowledged-only", help="Move only the acknowledged position, not the readers.")
    ] = False,
    dry_run: DryRunOption = False,
    owner: OwnerOption = None,
    yes: YesOption = False,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Move a subscriber forwards (skip) or backwards (read again) in one stream: its readers and its acknowledged position.

    The same as penstock group reset with --stream, which explains what is refused. With --acknowledged-only, the readers
    stay where they are; only what retention may delete changes. Use it for Spark queries, whose positions are in their
    checkpoints, and for groups of other clients.

    The next retention cycle may delete the events that are skipped. If there are any, the command shows them and asks
    for confirmation. Without a terminal, it refuses unless --yes is given.

    \b
    penstock subscriber move demo/clicks demo/reports --to latest --dry-run
    """
    if not acknowledged_only:
        to_reset = place_to_reset(to, (stream,))
        with open_target(controller, data, who=owner, why=reason) as store:
            reset_group(store, name, to_reset, (stream,), dry_run=dry_run, yes=yes, json=json)
        return
    place = position_of(to, stream)
    loss: Loss | None = None
    with open_target(controller, data, who=owner, why=reason) as store:
        handle = store.stream(stream)
        found = handle.set_acknowledged(name, place, dry_run=True)
        if not dry_run:
            loss = skipped(stream, name, found)
            confirm(loss, yes=yes, as_json=json)
            found = handle.set_acknowledged(name, place)
    said = _released(stream, name, found)
    message = f"{said}; nothing was changed" if dry_run else done(said, loss)
    say(message, as_json=json, dry_run=dry_run, **as_json(found), **lost_fields(loss))


def skipped(stream: str, name: str, found: SubscriberMove) -> Loss | None:
    """The unread data that a move skips; None if it skips nothing."""
    # A move may skip data at one key and go back at another.
    size, events = found.passed_bytes, found.passed_events
    if not size:
        return None
    facts = {"unread": amount(size, events), "undo": f"move it back, {UNTIL_DELETED}"}
    fields = {"subscriber": name, "bytes": size, "events": events}
    return Loss(action=f"move subscriber {name} of {stream} past unread data", facts=facts, fields=fields)


def _released(stream: str, name: str, found: SubscriberMove) -> str:
    size, events = found.bytes, found.events
    shown = "" if events is None else f", {counted(abs(events), 'event')}"
    verb = "acknowledges" if size >= 0 else "no longer acknowledges"
    return f"{name} {verb} {format_size(abs(size))}{shown} of {stream}; its readers stay where they are"


@app.command()
def remove(
    stream: StreamArgument,
    name: GroupArgument,
    yes: YesOption = False,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """End a subscription and delete its position. The next retention cycle may delete data that only it kept.

    Shows what will be lost and asks for confirmation. Without a terminal, it refuses unless --yes is given.

    \b
    penstock subscriber remove demo/clicks demo/reports --yes
    """
    with open_target(controller, data, why=reason) as store:
        handle = store.stream(stream)
        item = next((item for item in handle.subscribers() if item.name == name), None)
        loss = None if item is None else _ended(stream, item)
        confirm(loss, yes=yes, as_json=json)
        handle.remove_subscriber(name)
    said = done(f"removed subscriber {name} of {stream}", loss)
    say(said, as_json=json, stream=stream, subscriber=name, **lost_fields(loss))


def _ended(stream: str, item: SubscriberInfo) -> Loss | None:
    """What ending a subscription loses; None if it has acknowledged nothing, because then no data is kept for it."""
    if item.cut is None:
        return None
    facts = {"position": cut_words(offsets(item.cut)), "unread": unread_words(item), "undo": FINAL}
    return Loss(action=f"remove subscriber {item.name} of {stream}", facts=facts, fields=subscription(stream, item))
