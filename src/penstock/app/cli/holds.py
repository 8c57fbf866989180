"""``penstock hold``."""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import UNSET

from penstock.app.cli.common.loss import UNTIL_DELETED, Loss, confirm, done, lost_fields
from penstock.app.cli.common.options import FROM, ID, UNTIL, OwnerOption, ReasonOption, YesOption
from penstock.app.cli.common.output import ProgressLine, print_json, print_rows, say
from penstock.app.cli.common.positions import cut_at, position_of
from penstock.app.cli.common.target import ControllerOption, DataOption, JsonOption, open_target, owner_of
from penstock.app.cli.common.words import moment, parse_moment
from penstock.codec.control.policy_document import encode_hold
from penstock.core.units import format_size
from penstock.model.answers.erasure import Erasure
from penstock.model.errors import InvalidArgumentError, NotFoundError
from penstock.model.names import StreamName, check_name
from penstock.model.retention import HoldInfo
from penstock.storage.machine.clock import RealClock

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Store

_SHOWN_STREAMS = 20  # streams per list on the screen

app = typer.Typer(
    help="Holds: data that no rule and no call may delete.",
    no_args_is_help=True,
)

TargetArgument = Annotated[str, typer.Argument(metavar="SCOPE/STREAM|SCOPE", show_default=False)]


def _target(text: str) -> StreamName | str:
    return StreamName.parse(text) if "/" in text else check_name("scope", text)


@app.command()
def add(
    target: TargetArgument,
    reason: ReasonOption,
    owner: OwnerOption = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help=f"{UNTIL} Or 90d from now. Default: until it is released.",
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="POSITION", help=f"{FROM} Default: all data is kept.", show_default=False),
    ] = None,
    hold_id: Annotated[str | None, typer.Option("--id", metavar="ID", help=ID, show_default=False)] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Protect the data of a stream, or of all streams of a scope, from every deletion, manual ones included.

    \b
    penstock hold add demo/clicks --id case-4711 --reason "court order" --owner legal --until 90d
    """
    held = _target(target)
    if start is not None and not isinstance(held, StreamName):
        raise InvalidArgumentError("--from is for the hold of a stream", target=target)
    until_ms = None if until is None else parse_moment(until, now_ms=RealClock().now_ms())
    place = None if start is None else position_of(start, target)
    with open_target(controller, data) as store:
        cut = cut_at(store.stream(target), place) if place is not None else None
        hold = store.holds(held).add(owner=owner_of(owner), reason=reason, until=until_ms, cut=cut, hold_id=hold_id)
    end = "it is released" if hold.until_ms is None else moment(hold.until_ms)
    say(f"hold {hold.id} keeps {_what(hold)} until {end}", as_json=json, **encode_hold(hold))


def _what(hold: HoldInfo) -> str:
    whole = f"scope {hold.scope}" if hold.stream is None else str(hold.stream)
    return whole if hold.cut is None else f"{whole} from {hold.cut.to_text()} on"


@app.command("list")
def list_holds(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="SCOPE/STREAM|SCOPE", show_default=False, help="Only this one.  [default: the whole store]"
        ),
    ] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print each hold with its owner, reason and end. For a stream, also the holds of its scope.

    \b
    penstock hold list demo/clicks
    """
    of = None if target is None else _target(target)
    with open_target(controller, data) as store:
        found = store.holds(of).list()
    if json:
        for hold in found:
            print_json(encode_hold(hold))
        return
    rows = [
        [
            hold.id,
            f"{hold.scope}/*" if hold.stream is None else str(hold.stream),
            "all" if hold.cut is None else "from a cut on",
            hold.owner,
            hold.reason,
            moment(hold.created_ms),
            "until released" if hold.until_ms is None else moment(hold.until_ms),
        ]
        for hold in found
    ]
    print_rows(["hold", "on", "data", "owner", "reason", "since", "ends"], rows, as_json=False)


@app.command()
def release(
    hold_id: Annotated[str, typer.Argument(metavar="HOLD", show_default=False)],
    owner: OwnerOption = None,
    yes: YesOption = False,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Release a hold and record who did. The next retention cycle may delete data that only this hold kept.

    An erasure that only this hold defers begins at once. The command shows what the hold keeps and which erasures it
    defers, and asks for confirmation. Without a terminal, it refuses unless --yes is given.

    \b
    penstock hold release case-4711 --owner legal --reason "case closed"
    """
    with ProgressLine(quiet=json) as line, open_target(controller, data, why=reason) as store:
        found = next((item for item in store.holds().list() if item.id == hold_id), None)
        if found is None:
            raise NotFoundError("no such hold", hold=hold_id[:120])
        loss = _loss(store, found, line)
        confirm(loss, yes=yes, as_json=json)
        hold = store.holds().release(hold_id, owner=owner_of(owner))
    said = done(f"released hold {hold.id}, which kept {_what(hold)}", loss)
    say(said, as_json=json, **encode_hold(hold), **lost_fields(loss))


def _loss(store: Store, hold: HoldInfo, line: ProgressLine) -> Loss:
    """What the hold keeps, as the planner explains each stream that it covers. If several holds cover the same data,
    the planner names one of them."""
    names = (
        [str(hold.stream)]
        if hold.stream is not None
        else [f"{hold.scope}/{name}" for name in store.streams(hold.scope)]
    )
    kept: list[tuple[str, int]] = []
    for name in names:
        line.show(name)
        with suppress(NotFoundError):  # The stream was deleted since the listing.
            ranges = store.stream(name).retention.explain().ranges
            size = sum(item.bytes for item in ranges if (item.kind, item.name) == ("hold", hold.id))
            if size:
                kept.append((name, size))
    line.show("")
    kept.sort(key=lambda item: (-item[1], item[0]))
    shown = [f"{format_size(size)} of {name}" for name, size in kept[:_SHOWN_STREAMS]]
    if len(kept) > _SHOWN_STREAMS:
        shown.append(f"and data of {len(kept) - _SHOWN_STREAMS} more streams")
    deferred = [item for item in store.erasures(hold.stream).list() if _defers(hold, item)]
    facts: dict[str, object] = {"hold": f"of {hold.owner}: {hold.reason}", "keeps": shown or "no data now"}
    # Holds as they are now: an erasure notes the end of another hold a little later.
    in_force = {item.id for item in store.holds().list()} - {hold.id}
    begin = {item.erasure for item in deferred if _begins(item, in_force)}
    if deferred:
        facts["erasures"] = [_erasure_words(item, item.erasure in begin) for item in deferred]
    again = f"place a new hold, {UNTIL_DELETED}"
    facts["undo"] = f"{again}; an erasure cannot be undone" if begin else again
    fields = {
        "bytes": sum(size for _, size in kept),
        "streams": len(kept),
        "erasures": [item.erasure for item in deferred],
    }
    return Loss(action=f"release hold {hold.id}", facts=facts, fields=fields)


def _defers(hold: HoldInfo, erasure: Erasure) -> bool:
    return erasure.deferred is not UNSET and any(item.hold == hold.id for item in erasure.deferred.holds)


def _begins(erasure: Erasure, in_force: Set[str]) -> bool:
    """Whether the erasure begins after a release: none of the holds ``in_force`` then defers it. ``holds`` may lack some
    of ``count``."""
    deferred = erasure.deferred
    return (
        deferred is not UNSET
        and len(deferred.holds) == deferred.count
        and not any(item.hold in in_force for item in deferred.holds)
    )


def _erasure_words(erasure: Erasure, begins: bool) -> str:
    asked = erasure.asked
    what = "begins at once" if begins else "is still deferred by other holds"
    return f"{erasure.erasure} of {erasure.stream} {what} ({asked['who']}: {asked['why']})"
