"""``penstock group``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.common.loss import (
    FINAL,
    UNTIL_DELETED,
    Loss,
    confirm,
    done,
    lost_fields,
    subscription,
    unread_words,
)
from penstock.app.cli.common.options import TIME_TOO, TO, DryRunOption, OwnerOption, ReasonOption, YesOption
from penstock.app.cli.common.output import print_answer, print_json, print_rows, say
from penstock.app.cli.common.positions import EVENTS_BACK
from penstock.app.cli.common.target import (
    ControllerOption,
    DataOption,
    GroupArgument,
    JsonOption,
    ScopeFilterArgument,
    open_target,
)
from penstock.app.cli.common.words import cut_words, moment_of, parse_cut
from penstock.core.units import counted, format_duration, format_size
from penstock.model.answers.groups import GroupDescription, GroupProgress
from penstock.model.cuts import ENDS, StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError, NotFoundError
from penstock.model.names import StreamName
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.subscribers import SubscriberInfo

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Store

app = typer.Typer(
    help="Reader groups: readers that share streams and acknowledge data together.",
    no_args_is_help=True,
)

ResetToOption = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="POSITION",
        help=f'{TO} {TIME_TOO} "-100 events" goes back from its current position.',
        show_default=False,
    ),
]


@app.command("list")
def list_groups(
    scope: ScopeFilterArgument = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """List the reader groups of a scope, or of the store.

    \b
    penstock group list
    penstock group list demo
    """
    with open_target(controller, data) as store:
        names = list(store.reader_groups(scope))
    print_rows(["group"], [[name] for name in names], as_json=json)


@app.command()
def describe(
    group: GroupArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Print a group's readers, its positions, and how far behind it is in each stream: bytes, events and time.

    It works for every group. For a group of another client or of a Spark query, the position is what it has acknowledged.
    "oldest unread" is exact to one block of the store, 1 MiB or 10 seconds of appends.

    \b
    penstock group describe demo/reports
    """
    with open_target(controller, data) as store:
        found = store.describe_reader_group(group)
    print_answer(found, _group_words, as_json=json)


def _group_words(found: GroupDescription) -> Mapping[str, object]:
    facts: dict[str, object] = {
        "group": f"{found.group}, generation {found.generation}, id {found.id}",
        "owner": found.owner,
        "retention": found.retention,
        "readers": [f"{item.name}: {_segments_words(item.segments) or 'nothing'}" for item in found.members] or "none",
    }
    if found.unassigned:
        facts["unassigned"] = _segments_words(found.unassigned)
    for item in found.streams:
        facts[item.stream] = list(_progress_words(item))
    return facts


def _segments_words(segments: Mapping[str, Mapping[str, int]]) -> str:
    return "; ".join(f"{stream} {cut_words(offsets)}" for stream, offsets in segments.items())


def _progress_words(item: GroupProgress) -> Iterator[str]:
    if item.position is None or item.lag_bytes is None:
        yield "position unknown"
    else:
        events = "an unknown number of events" if item.lag_events is None else counted(item.lag_events, "event")
        age = "" if item.lag_bytes == 0 else f", oldest unread {_age(item.lag_ms)}"
        yield f"{format_size(item.lag_bytes)}, {events} behind{age}"
        yield f"processed     {cut_words(item.position)}"
    yield f"acknowledged  {'nothing is kept for it' if item.acknowledged is None else cut_words(item.acknowledged)}"


def _age(lag_ms: int | None) -> str:
    return "of unknown age" if lag_ms is None else f"{format_duration(lag_ms)} ago"


@app.command()
def members(
    group: GroupArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Print the readers of a group, and the segments that each reads, with what it has processed.

    A reader that died is shown until its lease ends and another reader takes over.

    \b
    penstock group members demo/reports
    """
    with open_target(controller, data) as store:
        found = store.describe_reader_group(group).members
    rows = [
        [item.name, stream, offsets if json else cut_words(offsets)]
        for item in found
        for stream, offsets in (item.segments or {"": {}}).items()
    ]
    print_rows(["reader", "stream", "processed"], rows, as_json=json)


@app.command()
def delete(
    group: GroupArgument,
    yes: YesOption = False,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a group and its positions. The next retention cycle may delete data that only this group kept.

    Shows what will be lost and asks for confirmation. Without a terminal, it refuses unless --yes is given.

    \b
    penstock group delete demo/reports
    """
    scope, _, name = group.partition("/")
    with open_target(controller, data, why=reason) as store:
        config = store.call(lambda inner: inner.controller.groups.get(scope, name))
        loss = _loss(store, config)
        confirm(loss, yes=yes, as_json=json)
        store.call(lambda inner: inner.controller.groups.delete(scope, name))
    say(done(f"deleted reader group {group}", loss), as_json=json, group=group, **lost_fields(loss))


def _loss(store: Store, config: ReaderGroupConfig) -> Loss:
    """The positions of the group, and the unread data of the streams that it subscribes to."""
    found: list[tuple[str, SubscriberInfo]] = []
    for stream in config.start_cuts:
        with suppress(NotFoundError):  # A group can outlive its streams.
            found += [
                (str(stream), item) for item in store.stream(str(stream)).subscribers() if item.name == config.full_name
            ]
    facts = {
        "positions": f"in {counted(len(config.start_cuts), 'stream')}",
        "unread": [f"{stream}: {unread_words(item)}" for stream, item in found] or "no data is kept for it",
        "undo": FINAL,
    }
    fields = {
        "streams": len(config.start_cuts),
        "subscriptions": [subscription(stream, item) for stream, item in found],
    }
    return Loss(action=f"delete reader group {config.full_name}", facts=facts, fields=fields)


@app.command()
def reset(
    group: GroupArgument,
    to: ResetToOption,
    stream: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="SCOPE/STREAM", help="Only in this stream; may be given again."),
    ] = None,
    dry_run: DryRunOption = False,
    reason: ReasonOption = "",
    owner: OwnerOption = None,
    yes: YesOption = False,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Move a group's readers and its acknowledged position to one place, in all of its streams.

    Shows first what would be done, and asks if unread events are skipped. --dry-run stops there.

    Fails while readers are online: close them first. If readers do not respond, it waits 10 seconds to see if they are
    online. Groups of Spark queries and of Pravega's Java client are refused: their positions are not in this store.

    \b
    penstock group reset demo/reports --to earliest
    penstock group reset demo/reports --to 2026-01-31T12:00:00Z --dry-run
    penstock group reset demo/reports --to "-100 events"
    """
    place = place_to_reset(to, stream or ())
    with open_target(controller, data, who=owner, why=reason) as store:
        reset_group(store, group, place, stream or (), dry_run=dry_run, yes=yes, json=json)


def reset_group(
    store: Store,
    group: str,
    place: StreamCut | datetime | str | int,
    streams: Sequence[str],
    *,
    dry_run: bool,
    yes: bool,
    json: bool,
) -> None:
    """Show what the reset skips, ask if it skips anything, reset, and print what was done."""
    found = store.reset_reader_group(group, place, streams=streams, dry_run=True)
    if not dry_run:
        for item in () if json or yes else found:
            moved = f"{_moved(item)}, from {_place_words(item['from'])} to {_place_words(item['to'])}"
            print(f"would do: {moved}", file=sys.stderr)
        confirm(_skipped(group, found), yes=yes, as_json=json)
        found = store.reset_reader_group(group, place, streams=streams)
    for item in found:
        if json:
            print_json({"dry_run": dry_run, **item})
        else:
            print(_moved(item) + ("; nothing was changed" if dry_run else ""))


def _place_words(offsets: Mapping[str, int] | None) -> str:
    return "an unknown place" if offsets is None else cut_words(offsets)


def _skipped(group: str, found: Sequence[Mapping[str, Any]]) -> Loss | None:
    """What a reset skips; None if it only goes back."""
    skips = [item for item in found if _skips(item)]
    if not skips:
        return None
    facts = {"unread": [_moved(item) for item in skips], "undo": f"reset it back, {UNTIL_DELETED}"}
    sums = {name: [item[name] for item in skips] for name in ("bytes", "events")}
    fields = {name: None if None in values else sum(values) for name, values in sums.items()}
    fields |= {"group": group, "streams": [item["stream"] for item in skips]}
    return Loss(action=f"reset reader group {group} past unread data", facts=facts, fields=fields)


def place_to_reset(to: str, streams: Sequence[str]) -> StreamCut | datetime | str | int:
    """Parse the place of a reset in these streams; empty: in all streams of the group. Raises InvalidArgumentError."""
    if to in ENDS:
        return ENDS[to]
    if back := EVENTS_BACK.fullmatch(to.strip()):
        return -int(back[1])
    try:
        # Offsets alone do not name their stream.
        return parse_cut(to, StreamName.parse(streams[0])) if len(streams) == 1 else StreamCut.from_text(to)
    except InvalidCutError:
        pass
    try:
        return moment_of(to)
    except ValueError as error:
        raise InvalidArgumentError(
            'not a position: use earliest, latest, a time such as 2026-01-31T12:00:00Z, "-100 events", or a stream cut, as '
            f"`penstock stream describe` prints it{'' if len(streams) == 1 else ' (with --stream)'}",
            value=repr(to[:60]),
        ) from error


def _skips(item: Mapping[str, Any]) -> bool:
    sizes = (item["bytes"], item.get("acknowledged_bytes", 0))
    return any(size is None or size > 0 for size in sizes)


def _moved(item: Mapping[str, Any]) -> str:
    size, events, group, stream = item["bytes"], item["events"], item["group"], item["stream"]
    if size is None:
        return f"{group} skips some events of {stream} and reads others again"
    if size:
        return f"{group} {'skips' if size >= 0 else 'reads again'} {_amount(size, events)} of {stream}"
    stays = f"{group} stays where it is in {stream}"
    acknowledged = item.get("acknowledged_bytes", 0)
    if acknowledged is None:
        return f"{stays}, and acknowledges another position"
    if acknowledged:
        change = "acknowledges" if acknowledged > 0 else "no longer acknowledges"
        return f"{stays}, and {change} {_amount(acknowledged, item['acknowledged_events'])}"
    return f"{stays}: it skips nothing and reads nothing again"


def _amount(size: int, events: int | None) -> str:
    return format_size(abs(size)) + ("" if events is None else f", {counted(abs(events), 'event')}")
