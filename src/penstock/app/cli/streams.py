"""``penstock stream``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.common.loss import FINAL, Loss, confirm, done, lost_fields, removal_of
from penstock.app.cli.common.options import AT, DATA, SEGMENTS, ReasonOption, YesOption
from penstock.app.cli.common.output import print_facts, print_rows, say
from penstock.app.cli.common.positions import cut_at, position_of
from penstock.app.cli.common.target import (
    ControllerOption,
    DataOption,
    JsonOption,
    ScopeFilterArgument,
    StreamArgument,
    open_target,
)
from penstock.app.cli.common.words import moment
from penstock.app.cli.policies import MaxOption, MinOption, TypeOption, as_fields, parse_policy, sentence_in_force
from penstock.app.cli.scaling import (
    EventsOption,
    FactorOption,
    KilobytesOption,
    scaling_fields,
    scaling_policy,
    scaling_texts,
)
from penstock.app.cli.scaling import app as scaling_app
from penstock.core.retention.facts import holder_in_words
from penstock.core.units import counted, format_size
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    CorruptDataError,
    ScopeNotFoundError,
    StreamNotSealedError,
    UnsupportedError,
)
from penstock.model.names import StreamName
from penstock.model.policies import ScaleType
from penstock.model.segments import epoch_of, number_of
from penstock.ports.control.streams import StreamDescription

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Store
    from penstock.client.store import AsyncStore

app = typer.Typer(
    help="Create, list, describe, scale, truncate, seal, repair, delete and restore streams.", no_args_is_help=True
)

app.add_typer(scaling_app, name="scaling")


@app.command()
def create(
    stream: StreamArgument,
    segments: Annotated[int, typer.Option("--segments", metavar="N", min=1, help=SEGMENTS)] = 1,
    events_per_s: EventsOption = None,
    kbytes_per_s: KilobytesOption = None,
    factor: FactorOption = None,
    kind: TypeOption = None,
    minimum: MinOption = None,
    maximum: MaxOption = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="A tag; may be given again.")] = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Do nothing if the stream exists.")] = False,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Create a stream, and its scope if it is missing.

    \b
    penstock stream create demo/clicks --segments 4
    penstock stream create demo/clicks --segments 2 --events-per-s 1000 --factor 4
    penstock stream create demo/clicks --type size --min 10MB --max 100MB
    """
    StreamName.parse(stream).checked()
    policy = parse_policy(kind, minimum, maximum)
    scaling = scaling_policy(events_per_s, kbytes_per_s, factor, segments)
    with open_target(controller, data, create=True) as store:
        if if_absent and store.stream(stream).exists():
            found = store.stream(stream).describe()
            kept = f"{stream} exists already and was not changed: {counted(len(found.segments), 'segment')}"
            say(f"{kept}; {sentence_in_force(store, stream)}", as_json=json, stream=stream, created=False)
            return
        store.create_stream(
            stream, scaling=scaling, retention=policy, tags=tuple(tag or ()), if_absent=if_absent, create_scope=True
        )
        said = f"created stream {stream} with {counted(segments, 'segment')}; {sentence_in_force(store, stream)}"
    say(said, as_json=json, stream=stream, created=True)


@app.command("list")
def list_streams(
    scope: ScopeFilterArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="List internal streams too.")] = False,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """List the streams of a scope, or of the store.

    \b
    penstock stream list
    penstock stream list demo
    """
    with open_target(controller, data) as store:
        names = list(_stream_names(store, scope, everything=everything))
    print_rows(["stream"], [[name] for name in names], as_json=json)


def _stream_names(store: Store, scope: str | None, *, everything: bool) -> Iterator[str]:
    """The streams of the scope, or (None) of all scopes, as ``scope/stream``, sorted."""
    if scope is not None:
        yield from (f"{scope}/{name}" for name in store.streams(scope, internal=everything))
        return
    for each in store.scopes():
        if everything or not each.startswith("_"):
            with suppress(ScopeNotFoundError):  # It was deleted meanwhile.
                yield from _stream_names(store, each, everything=everything)


@app.command()
def describe(
    stream: StreamArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Print everything known about a stream: segments, head and tail, sizes, policy, subscribers, what holds the head.

    \b
    penstock stream describe demo/clicks
    """
    with open_target(controller, data) as store:
        found = store.stream(stream).describe()
        said = sentence_in_force(store, stream)
        scaling = store.stream(stream).explain_scaling()
    if json:
        facts = {**_json_facts(found), "sentence": said, "scaling": scaling_fields(scaling)}
    else:
        texts = scaling_texts(scaling)
        facts = _text_facts(found, said)
        if found.config.scaling.type is not ScaleType.FIXED:
            facts |= {"segments": texts["segments"], "scaling": [texts["scaling"], texts["now"]]}
            facts["changes"] = texts["changes"]
    print_facts(facts, as_json=json)


def _json_facts(found: StreamDescription) -> dict[str, object]:
    return {
        "stream": str(found.stream),
        "epoch": found.epoch,
        "sealed": found.sealed,
        "segments": [
            {
                "segment": f"{number_of(item.segment)}#{epoch_of(item.segment)}",
                "low": item.keys.low,
                "high": item.keys.high,
            }
            for item in found.segments
        ],
        "head": _offsets(found.head),
        "tail": _offsets(found.tail),
        "head_cut": found.head.to_text(),
        "tail_cut": found.tail.to_text(),
        "size_bytes": found.size_bytes,
        "written_bytes": found.written_bytes,
        "disk_bytes": found.disk_bytes,
        "freed_bytes": found.freed_bytes,
        "pending_free_bytes": found.pending_free_bytes,
        "retention": as_fields(found.config.retention),
        "tags": list(found.config.tags),
        "held_by": found.held_by,
        "subscribers": [
            {
                "name": item.name,
                "generation": item.generation,
                "cut": None if item.cut is None else _offsets(item.cut),
                "lag_bytes": item.lag_bytes,
                "updated_ms": item.updated_ms,
            }
            for item in found.subscribers
        ],
    }


def _text_facts(found: StreamDescription, policy: str) -> dict[str, object]:
    return {
        "stream": f"{found.stream}{' (sealed)' if found.sealed else ''}, epoch {found.epoch}",
        "segments": [
            f"{number_of(item.segment)}#{epoch_of(item.segment)}  keys [{item.keys.low:.4f}, {item.keys.high:.4f})"
            for item in found.segments
        ],
        "head": _show(found.head),
        "tail": _show(found.tail),
        "size": f"{format_size(found.size_bytes)} of {format_size(found.written_bytes)} ever written",
        "disk": f"{format_size(found.disk_bytes)}; freed {format_size(found.freed_bytes)}, "
        f"to be freed {format_size(found.pending_free_bytes)}",
        "retention": policy,
        "held by": holder_in_words(found.held_by),
        "subscribers": [
            f"{item.name}  {format_size(item.lag_bytes)} behind the tail" if item.cut else f"{item.name}  silent"
            for item in found.subscribers
        ]
        or "none",
        "tags": ", ".join(found.config.tags) or "none",
    }


def _offsets(cut: StreamCut) -> dict[str, int]:
    return {f"{number_of(item)}#{epoch_of(item)}": offset for item, offset in sorted(cut.positions.items())}


def _show(cut: StreamCut) -> str:
    return "  ".join(f"{name}:{offset}" for name, offset in _offsets(cut).items()) or "empty"


@app.command()
def scale(
    stream: StreamArgument,
    segments: Annotated[int, typer.Option("--segments", metavar="N", min=1, help=SEGMENTS, show_default=False)],
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Replace the active segments with the given number of equal ones. Order per key is kept.

    \b
    penstock stream scale demo/clicks --segments 8
    """
    with open_target(controller, data) as store:
        handle = store.stream(stream)
        found = handle.describe()
        before = len(found.segments)
        if found.config.scaling.min_segments != segments and found.config.scaling.type is ScaleType.FIXED:
            # A fixed stream is as wide as its policy says: changing that scales it, down as well as up.
            handle.update(segments=segments)
        else:
            handle.scale(segments=segments)
        epoch = handle.describe().epoch
    say(
        f"{stream}: {counted(before, 'segment')} became {segments}, epoch {epoch}",
        as_json=json,
        stream=stream,
        epoch=epoch,
    )


@app.command()
def truncate(
    stream: StreamArgument,
    at: Annotated[str, typer.Option("--at", metavar="POSITION", help=AT, show_default=False)],
    yes: YesOption = False,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Delete everything before a cut. Subscribers that have not read it lose it.

    Shows what will be deleted and asks for confirmation. Without a terminal, it refuses unless --yes is given.

    \b
    penstock stream truncate demo/clicks --at latest --reason "test data"
    """
    place = position_of(at, stream)
    with open_target(controller, data, why=reason) as store:
        handle = store.stream(stream)
        cut = cut_at(handle, place)
        loss = removal_of(store, handle.name, cut)
        confirm(loss, yes=yes, as_json=json)
        before = handle.head()
        handle.truncate(cut)
        after = handle.head()
    changed = before.positions != after.positions
    said = f"truncated {stream} at {_show(cut)}" if changed else f"{stream} begins at {_show(after)}: nothing changed"
    head = _offsets(cut if changed else after)
    say(done(said, loss), as_json=json, stream=stream, head=head, changed=changed, **lost_fields(loss))


@app.command()
def seal(
    stream: StreamArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """End a stream: it takes no more events and can still be read.

    \b
    penstock stream seal demo/clicks
    """
    with open_target(controller, data) as store:
        store.stream(stream).seal()
    say(f"sealed {stream}", as_json=json, stream=stream)


@app.command()
def delete(
    stream: StreamArgument,
    seal: Annotated[bool, typer.Option("--seal", help="Seal the stream first if it is still open.")] = False,
    yes: YesOption = False,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a sealed stream and its data. If a hold covers it, the command fails and changes nothing.

    The name is free at once. Until the server's deletion grace ends, "penstock stream restore" restores the stream.
    Shows what will be deleted and asks for confirmation. Without a terminal, it refuses unless --yes is given.

    \b
    penstock stream delete demo/clicks --seal --reason "replaced by demo/visits"
    """
    with open_target(controller, data, why=reason) as store:
        handle = store.stream(stream)
        loss = removal_of(store, handle.name, None)
        # Do not ask about a deletion that would fail. If a damaged record hides the state, the store decides.
        with suppress(CorruptDataError):
            if not seal and not handle.describe().sealed:
                raise StreamNotSealedError(
                    "the stream is not sealed; --seal seals it once its deletion is allowed", stream=stream
                )
        confirm(loss, yes=yes, as_json=json)
        handle.delete(seal=seal)
        loss = _with_end(loss, store, handle.name)
    say(done(f"deleted {stream}", loss), as_json=json, stream=stream, **lost_fields(loss))


def _with_end(loss: Loss | None, store: Store, name: StreamName) -> Loss | None:
    """The loss with the time until which the deleted stream can be restored."""
    if loss is None:
        return None
    until_ms = None
    with suppress(UnsupportedError):  # An older server cannot restore streams.
        found = [item.restorable_until_ms for item in store.deleted_streams(name.scope) if item.stream == name]
        until_ms = max(found, default=None)
    undo = FINAL if until_ms is None else f"`penstock stream restore {name}`, until {moment(until_ms)}"
    fields = {**loss.fields, "restorable_until_ms": until_ms}
    return replace(loss, facts={**loss.facts, "undo": undo}, fields=fields)


@app.command()
def deleted(
    target: Annotated[
        str | None, typer.Argument(metavar="[SCOPE[/STREAM]]", help="Only this scope, or streams of this name.")
    ] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """List the deleted streams that can be restored, and until when. Their data stays on disk until then.

    \b
    penstock stream deleted demo
    penstock stream deleted demo/clicks
    """
    with open_target(controller, data) as store:
        scope = None if target is None else target.partition("/")[0]
        found = [item for item in store.deleted_streams(scope) if target in (None, scope, str(item.stream))]
    titles = ["stream", "incarnation", "deleted", "by", "bytes", "restorable until"]
    rows: list[list[object]] = [
        [
            str(item.stream),
            item.incarnation,
            item.deleted_ms if json else moment(item.deleted_ms),
            item.rule if json else item.caller.get("who") or item.rule,
            item.size_bytes if json or item.size_bytes is None else format_size(item.size_bytes),
            item.restorable_until_ms if json else moment(item.restorable_until_ms),
            *([dict(item.caller)] if json else []),
        ]
        for item in found
    ]
    names = ["stream", "incarnation", "deleted_ms", "rule", "size_bytes", "restorable_until_ms", "caller"]
    print_rows(names if json else titles, rows, as_json=json)


@app.command()
def restore(
    stream: StreamArgument,
    incarnation: Annotated[
        int | None,
        typer.Option(
            "--incarnation", metavar="N", help="Which stream, if several had this name.  [default: the last deleted]"
        ),
    ] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Restore a deleted stream before its grace ends: its events, policy, tags and the positions of its subscribers.

    A stream that was not sealed accepts events again. Transactions that were open stay aborted. A subscriber is not
    restored if its reader group has been deleted or changed since; the command names it.

    \b
    penstock stream restore demo/clicks
    """
    StreamName.parse(stream).checked()
    with open_target(controller, data) as store:
        found = store.restore_stream(stream, incarnation=incarnation)
    size = "" if found.size_bytes is None else f" with {format_size(found.size_bytes)}"
    lines = [f"restored {stream}{size}; it is {'sealed' if found.sealed else 'open for events'}"]
    lines += [
        f"not restored: subscriber {name}, whose reader group was deleted or changed"
        for name in found.dropped_subscribers
    ]
    say(
        "\n".join(lines),
        as_json=json,
        stream=stream,
        incarnation=found.incarnation,
        sealed=found.sealed,
        size_bytes=found.size_bytes,
        dropped_subscribers=list(found.dropped_subscribers),
    )


@app.command()
def repair(
    stream: StreamArgument,
    data: Annotated[
        Path,
        typer.Option("--data", metavar="DIR", help=f"{DATA} Stop its server first.", show_default=False),
    ],
    json: JsonOption = False,
) -> None:
    """Repair the records that block every change of a stream, then finish what was begun.

    A decided transaction whose record is lost gets a new one; a decision whose queue entry is lost is queued again.
    Transactions that can never be finished are removed. The command prints each record that it removed, queued again or
    kept, with the reason. "removed ...; its record was made again" means that the record was replaced and no event is lost.
    The command does not change data that is part of the stream.

    \b
    penstock stream repair demo/clicks --data ./store
    """
    from penstock.controller.controller import Controller

    name = StreamName.parse(stream)

    async def work(store: AsyncStore) -> Mapping[str, Any]:
        if not isinstance(store.controller, Controller):
            raise UnsupportedError("repair needs the stream's data directory", stream=stream)
        return await store.controller.repair_stream(name)

    with open_target(None, data) as store:
        found = store.call(work)
    lines = [f"removed {item['key']}: {item['why']}" for item in found["removed"]]
    lines += [f"queued {item['txn']} again: {item['why']}" for item in found["requeued"]]
    lines += [f"kept {item['key']}: {item['why']}" for item in found["unreadable"]]
    say("\n".join(lines) or f"{stream} needs no repair", as_json=json, **found)
