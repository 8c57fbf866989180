"""The rule of every command that deletes: say what is lost, ask on a terminal, refuse elsewhere without --yes.

A command deletes if what it decides removes data, lets rules remove it, or ends a promise: a hold, a subscription, a
policy. Where nothing is lost, nothing is asked. docs/operations.md, "Commands that delete".
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.common.output import facts_lines
from penstock.app.units import counted, format_duration, format_size
from penstock.model.errors import InvalidArgumentError
from penstock.ports.controller_service import SubscriberInfo

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Store
    from penstock.model.cuts import StreamCut
    from penstock.model.names import StreamName

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Needed where nobody can be asked.")]
ReasonOption = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="The reason, for the audit entry.", show_default=False)
]

FINAL = "not possible"
UNTIL_DELETED = "until a rule deletes the data"
"""How what is lost can be brought back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a command takes away.

    ``deed``: what it does, as an order: ``delete stream demo/clicks``. ``facts``: for people, by name. ``fields``: the same
    as JSON; numbers that are not known are None.
    """

    deed: str
    facts: Mapping[str, object]
    fields: Mapping[str, Any]

    @property
    def lines(self) -> Sequence[str]:
        """The facts, indented, one a line."""
        return [f"  {line}" for line in facts_lines(self.facts)]


def confirm(loss: Loss | None, *, yes: bool, as_json: bool) -> None:
    """Return where nothing is lost, with ``yes``, or if the user agrees.

    Raises InvalidArgumentError where nobody can be asked. Leaves with status 1 where the answer is no.
    """
    if loss is None or yes:
        return
    if not as_json:
        print(f"this would {loss.deed}:", *loss.lines, sep="\n", file=sys.stderr)
    if not sys.stdin.isatty():
        raise refusal(loss.deed, **_shown(loss.fields))
    if not typer.confirm(f"{loss.deed[0].upper()}{loss.deed[1:]}?", err=True):
        print("nothing was changed", file=sys.stderr)
        raise typer.Exit(1)


def refusal(deed: str, **fields: Any) -> InvalidArgumentError:
    """The error of a command that cannot ask."""
    return InvalidArgumentError(
        "nothing was changed: this deletes, and there is no terminal to ask at. Confirm with --yes", deed=deed, **fields
    )


def _shown(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What fits in an error: numbers and texts."""
    plain = {name: value for name, value in fields.items() if not isinstance(value, list | Mapping)}
    return {name: "unknown" if value is None else value for name, value in plain.items()}


def done(message: str, loss: Loss | None) -> str:
    """What was done, and under it what was lost."""
    return "\n".join([message, *(loss.lines if loss is not None else ())])


def lost_fields(loss: Loss | None) -> dict[str, Any]:
    """What was lost, for the JSON of an answer."""
    return {} if loss is None else {"lost": dict(loss.fields)}


def amount(size_bytes: int | None, events: int | None) -> str:
    """``1.1 kB, 100 events``; says what is not known."""
    if size_bytes is None:
        return "an unknown amount"
    return f"{format_size(size_bytes)}, {'an unknown number of events' if events is None else counted(events, 'event')}"


def removal_of(store: Store, name: StreamName, cut: StreamCut | None) -> Loss | None:
    """What truncating at the cut loses, or deleting the stream (None); None where a truncation removes nothing.

    Raises as ``plan_removal``.
    """
    from penstock.net.removal_plan import plan_removal

    found = store.call(lambda inner: plan_removal(inner.controller, name, cut))
    if cut is not None and not found["bytes"]:
        return None
    facts: dict[str, object] = {"data": amount(found["bytes"], found["events"])}
    hurt = found["subscribers"]
    if hurt is None:
        facts["unread"] = "unknown"
    elif hurt:
        facts["unread"] = [f"{item['subscriber']}: {amount(item['bytes'], item['events'])}" for item in hurt]
    if found["holds"]:
        facts["holds"] = [f"{item['id']} of {item['owner']}: {item['reason']}" for item in found["holds"]]
    grace_s = found.get("grace_s")
    if cut is None:
        facts["undo"] = f"`penstock stream restore {name}`, if the server has a grace for deletions"
    elif grace_s:
        facts["undo"] = f"`penstock retention undo {name}`, for {format_duration(grace_s * 1000)}"
    else:
        facts["undo"] = FINAL
    deed = f"delete stream {name}" if cut is None else f"truncate stream {name}"
    return Loss(deed=deed, facts=facts, fields={key: value for key, value in found.items() if key != "stream"})


def subscription(stream: str, item: SubscriberInfo) -> dict[str, Any]:
    """A subscription that ends, for JSON: what it has not read, and what it alone keeps. None: unknown."""
    return {
        "stream": stream,
        "subscriber": item.name,
        "bytes": item.lag_bytes,
        "events": None if item.lag_events < 0 else item.lag_events,
        "held_bytes": None if item.held_bytes < 0 else item.held_bytes,
    }


def unread_words(item: SubscriberInfo) -> str:
    """The same for people."""
    if item.cut is None:
        return "it has published nothing, and nothing is kept for it"
    kept = "an unknown amount" if item.held_bytes < 0 else format_size(item.held_bytes)
    return f"{amount(item.lag_bytes, None if item.lag_events < 0 else item.lag_events)}; it alone keeps {kept}"
