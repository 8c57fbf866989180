"""What a manual truncation or the deletion of a stream would delete: the dry run of the command line and of HTTP.

All numbers come from the controller: sizes from ``measure``, losses of subscribers from ``describe_subscribers`` and from
a dry run of ``move_subscriber``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.codec.control.policy_document import encode_hold
from penstock.core.planner_json.stream import encode_cut
from penstock.model.cuts import StreamCut
from penstock.model.errors import CorruptDataError, SubscriberNotFoundError
from penstock.model.names import StreamName
from penstock.ports.control.plane import ControlPlane


async def plan_removal(controller: ControlPlane, stream: StreamName, cut: StreamCut | None) -> Mapping[str, Any]:
    """What a truncation at ``cut`` would delete, or the deletion of the whole stream (None). Changes nothing.

    ``from``, ``to``: cuts, as offsets by ``number#epoch``. ``bytes`` and ``events``: exact at the time of the call;
    ``events`` is None if a cut is not at an event boundary. ``subscribers``: those that have not read all of it, as
    ``subscriber``, ``bytes``, ``events``. ``holds``: all holds on the stream, as ``encode_hold`` returns them; a hold that
    covers what would be deleted makes the real call fail. ``grace_s``, only for a truncation: how long it can be undone.
    If the record of an epoch is lost, the cuts, numbers and subscribers of a deletion are unknown and None.
    Raises StreamNotFoundError; InvalidCutError (not a cut of the stream, or before its head).
    """
    holds = [encode_hold(item) for item in await controller.holds.list(stream)]
    found: dict[str, Any] = {"stream": str(stream), "holds": holds}
    if cut is not None:
        found["grace_s"] = (await controller.policies.effective(stream)).grace_ms / 1000
    try:
        head = await controller.cuts.head(stream)
        end = await controller.cuts.tail(stream) if cut is None else cut
        spans = await controller.cuts.measure(stream, head, end)
        subscribers = await _losses(controller, stream, cut)
    except CorruptDataError:
        if cut is not None:
            raise
        # Such a stream can only be deleted, so its deletion must stay possible.
        return found | dict.fromkeys(("from", "to", "bytes", "events", "subscribers"))
    counts = [span.events for span in spans]
    return found | {
        "from": encode_cut(head.positions),
        "to": encode_cut(end.positions),
        "bytes": sum(span.end - span.start for span in spans),
        "events": None if None in counts else sum(count or 0 for count in counts),
        "subscribers": subscribers,
    }


async def _losses(controller: ControlPlane, stream: StreamName, cut: StreamCut | None) -> Sequence[Mapping[str, Any]]:
    """The unread data that each subscriber would lose, by name. Leaves out subscribers that would lose nothing."""
    found: list[Mapping[str, Any]] = []
    for item in await controller.subscribers.describe(stream):
        if item.cut is None:
            continue  # It has acknowledged nothing, so nothing is kept for it.
        if cut is None:
            lost, events = item.lag_bytes, None if item.lag_events < 0 else item.lag_events
        else:
            try:
                passed = await controller.subscribers.move(stream, item.name, cut, dry_run=True)
            except SubscriberNotFoundError:
                continue  # It has just left.
            # A subscriber may be before the cut at one key and past it at another.
            lost, events = passed.passed_bytes, passed.passed_events
        if lost > 0:
            found.append({"subscriber": item.name, "bytes": lost, "events": events})
    return sorted(found, key=lambda item: item["subscriber"])
