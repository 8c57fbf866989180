"""The rule for every command that deletes: show what is lost, ask on a terminal, refuse elsewhere without --yes.

A command deletes if it removes data, lets a rule remove data, or ends a promise: a hold, a subscription, a policy. If
nothing is lost, it does not ask. Source: docs/how-to/operations.md, "Commands that delete".
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from penstock.app.cli.common.output import facts_lines
from penstock.core.policies.locks import lock_of
from penstock.core.units import counted, format_duration, format_size
from penstock.model.errors import InvalidArgumentError
from penstock.model.retention import PolicyDocument
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.subscribers import SubscriberInfo

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Store
    from penstock.model.cuts import StreamCut
    from penstock.model.names import StreamName

FINAL = "not possible"
UNTIL_DELETED = "until a rule deletes the data"
"""How a loss can be undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a command deletes.

    ``action``: the action, in the imperative: ``delete stream demo/clicks``. ``facts``: for people, by name. ``fields``:
    the same for JSON; unknown numbers are None.
    """

    action: str
    facts: Mapping[str, object]
    fields: Mapping[str, Any]

    @property
    def lines(self) -> Sequence[str]:
        """The facts, indented, one per line."""
        return [f"  {line}" for line in facts_lines(self.facts)]


def confirm(loss: Loss | None, *, yes: bool, as_json: bool) -> None:
    """Return if nothing is lost, if ``yes`` is set, or if the user agrees.

    Raises InvalidArgumentError if there is no terminal. Exits with status 1 if the answer is no.
    """
    if loss is None or yes:
        return
    if not as_json:
        print(f"this would {loss.action}:", *loss.lines, sep="\n", file=sys.stderr)
    if not sys.stdin.isatty():
        raise refusal(loss.action, **_shown(loss.fields))
    if not typer.confirm(f"{loss.action[0].upper()}{loss.action[1:]}?", err=True):
        print("nothing was changed", file=sys.stderr)
        raise typer.Exit(1)


def confirm_lock(where: str, before: PolicyDocument, after: PolicyDocument, *, yes: bool, as_json: bool) -> None:
    """Ask before a lock is set or moved: nobody can take it back."""
    until = lock_of(after)
    if until is None or until == lock_of(before):
        return
    means = {
        "until then": "nobody can keep less, truncate by hand or delete, and erasures wait",
        "it stays": "nobody can remove the lock or end it earlier; a longer retention is allowed",
    }
    action = f"lock the retention of {where} until {until}"
    if not yes and not sys.stdin.isatty():
        raise InvalidArgumentError(
            "nothing was changed: nobody can take back a lock, and there is no terminal to ask for confirmation; use --yes",
            action=action,
        )
    confirm(Loss(action=action, facts=means, fields={"lock_until": until}), yes=yes, as_json=as_json)


def refusal(action: str, **fields: Any) -> InvalidArgumentError:
    """The error of a command that cannot ask."""
    return InvalidArgumentError(
        "nothing was changed: this command asks for confirmation, and there is no terminal; use --yes",
        action=action,
        **fields,
    )


def _shown(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that fit into an error: numbers and strings."""
    plain = {name: value for name, value in fields.items() if not isinstance(value, list | Mapping)}
    return {name: "unknown" if value is None else value for name, value in plain.items()}


def done(message: str, loss: Loss | None) -> str:
    """The final message: what was done, and below it what was lost."""
    return "\n".join([message, *(loss.lines if loss is not None else ())])


def lost_fields(loss: Loss | None) -> dict[str, Any]:
    """What was lost, for JSON output."""
    return {} if loss is None else {"lost": dict(loss.fields)}


def amount(size_bytes: int | None, events: int | None) -> str:
    """For example ``1.1 kB, 100 events``; a number that is None is shown as unknown."""
    if size_bytes is None:
        return "an unknown amount"
    return f"{format_size(size_bytes)}, {'an unknown number of events' if events is None else counted(events, 'event')}"


def removal_of(store: Store, name: StreamName, cut: StreamCut | None) -> Loss | None:
    """What is lost by truncating at ``cut``, or by deleting the stream (None). None if a truncation removes nothing.

    Raises what ``plan_removal`` raises.
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
        facts["undo"] = f"`penstock stream restore {name}`, if the server has a deletion grace"
    elif grace_s:
        facts["undo"] = f"`penstock retention undo {name}`, for {format_duration(grace_s * 1000)}"
    else:
        facts["undo"] = FINAL
    action = f"delete stream {name}" if cut is None else f"truncate stream {name}"
    return Loss(action=action, facts=facts, fields={key: value for key, value in found.items() if key != "stream"})


def subscription(stream: str, item: SubscriberInfo) -> dict[str, Any]:
    """A subscription that will end, for JSON: what it has not read, and what it alone keeps. None: unknown."""
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
        return "it has acknowledged nothing yet, so no data is kept for it"
    kept = "an unknown amount" if item.held_bytes < 0 else format_size(item.held_bytes)
    return f"{amount(item.lag_bytes, None if item.lag_events < 0 else item.lag_events)}; it alone keeps {kept}"
