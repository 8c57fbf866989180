"""Our own calls next to Pravega's under ``/v1``: policies, the planner, deleted streams, holds, subscribers, erasures.

A call added here is served and described without further code. Source: docs/reference/rest.md, "Retention".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias
from uuid import UUID

from penstock.model.answers.erasure import Erasure, ErasureCase
from penstock.model.answers.explanation import Explanation
from penstock.model.answers.forecast import Forecast
from penstock.model.answers.plan import RetentionPlan, RetentionRun
from penstock.model.answers.reclaim import ReclaimReport
from penstock.model.answers.scaling import StreamScaling
from penstock.model.answers.subscribers import Eviction, SubscriberMove
from penstock.model.cuts import ENDS, StreamCut
from penstock.model.errors import InvalidArgumentError, SubscriberNotFoundError
from penstock.model.names import StreamName
from penstock.model.retention import EMPTY, EffectivePolicy, HoldInfo, PolicyDocument, PolicyTarget
from penstock.net.http.evidence_calls import approvals, evidence
from penstock.net.http.rest_calls import SCOPE, STREAM, Calls, Given, Kind, Parameter, RestCall
from penstock.net.http.retention_documents import (
    Cut,
    Subscriber,
    Undone,
    cut_document,
    cut_of,
    held_of,
    subscriber_document,
    subscriber_name,
    undone_document,
)
from penstock.net.removal_plan import plan_removal
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.scopes import ScopeContents
from penstock.ports.control.streams import DeletedStream, RestoredStream
from penstock.ports.control.transactions import OpenTransaction

SUBSCRIBER = f"{STREAM}/subscribers/{{subscriber:path}}"  # The name of a subscriber is scope/group.

# The Python type does not describe it: its schema is in openapi_v1.json.
Removal: TypeAlias = Annotated[Mapping[str, Any], "Removal"]

_FORMS = "`head`, `tail`, the text of a cut, or an object of offsets by `number#epoch`"
AT_MS = Parameter("at_ms", Kind.WHOLE, "The time to evaluate for, in milliseconds since 1970; absent: now")
CUT = Parameter("cut", Kind.CUT, _FORMS, needed=True)
DRY_RUN = Parameter("dry_run", Kind.FLAG, "Change nothing, and return what would be done; in the query or in the body")

streams = Calls("Streams")
retention = Calls("Retention")
holds = Calls("Holds")
erasures = Calls("Erasures")
subscribers = Calls("Subscribers")


async def _position(control: ControlPlane, stream: StreamName, value: object, *, field: str) -> StreamCut:
    """A cut, which may also be one of the names in ``ENDS``."""
    match ENDS.get(value) if isinstance(value, str) else None:
        case "head":
            return await control.cuts.head(stream)
        case "tail":
            return await control.cuts.tail(stream)
        case _:
            return cut_of(stream, value, field=field)


# --- scopes ----------------------------------------------------------------------------------------------------


@streams.add("GET", f"{SCOPE}/contents")
async def describe_scope(control: ControlPlane, given: Given) -> ScopeContents:
    """How many streams, reader groups and tables the scope holds."""
    return await control.scopes.describe(given.path["scope"])


# --- transactions ----------------------------------------------------------------------------------------------


@streams.add("GET", f"{STREAM}/transactions", under="transactions")
async def list_open_transactions(control: ControlPlane, given: Given) -> Sequence[OpenTransaction]:
    """Transactions that have not ended."""
    return await control.transactions.list_open(given.stream)


@streams.add("DELETE", f"{STREAM}/transactions/{{transaction}}", name="abortTransaction")
async def abort_transaction(control: ControlPlane, given: Given) -> None:
    """Abort an open transaction of any writer: its events are dropped, and its commit fails. It is audited."""
    text = given.path["transaction"]
    try:
        transaction = UUID(text)
    except ValueError as error:
        raise InvalidArgumentError("not the id of a transaction", transaction=text[:60]) from error
    await control.transactions.abort(given.stream, transaction)


# --- scaling ---------------------------------------------------------------------------------------------------


@streams.add("GET", f"{STREAM}/scaling")
async def explain_scaling(control: ControlPlane, given: Given) -> StreamScaling:
    """The rates of the active segments, what scaling by rate would do now and why, and its last changes."""
    return await control.layout.scaling(given.stream)


# --- policies --------------------------------------------------------------------------------------------------


@retention.add("GET", "/v1/retention", name="getServerPolicy")
@retention.add("GET", f"{SCOPE}/retention", name="getScopePolicy")
@retention.add("GET", f"{STREAM}/retention", name="getStreamPolicy")
async def get_policy(control: ControlPlane, given: Given) -> PolicyDocument:
    """The policy document of the server, a scope or a stream: only the values set at this level."""
    return await control.policies.get(given.target)


@retention.add("PUT", "/v1/retention", name="setServerPolicy", takes_policy=True)
@retention.add("PUT", f"{SCOPE}/retention", name="setScopePolicy", takes_policy=True)
@retention.add("PUT", f"{STREAM}/retention", name="setStreamPolicy", takes_policy=True)
async def set_policy(control: ControlPlane, given: Given) -> PolicyDocument:
    """Replace the policy document of this level. Returns the document as parsed."""
    await control.policies.set(given.target, given.document)
    return given.document


@retention.add("DELETE", "/v1/retention", name="clearServerPolicy")
@retention.add("DELETE", f"{SCOPE}/retention", name="clearScopePolicy")
@retention.add("DELETE", f"{STREAM}/retention", name="clearStreamPolicy")
async def clear_policy(control: ControlPlane, given: Given) -> None:
    """Remove the policy document of this level; the next level applies."""
    await control.policies.set(given.target, EMPTY)


@retention.add("GET", f"{STREAM}/retention/effective")
async def get_effective_policy(control: ControlPlane, given: Given) -> EffectivePolicy:
    """The policy that applies to the stream, each value with the level that sets it."""
    return await control.policies.effective(given.stream)


# --- the planner -----------------------------------------------------------------------------------------------


@retention.add("GET", f"{STREAM}/retention/plan", query=[AT_MS])
async def plan_retention(control: ControlPlane, given: Given) -> RetentionPlan:
    """What a cycle would do; changes nothing."""
    return await control.retention.plan(given.stream, at_ms=given["at_ms"])


@retention.add("POST", f"{STREAM}/retention/plan", query=[AT_MS], takes_policy=True)
async def plan_retention_change(control: ControlPlane, given: Given) -> RetentionPlan:
    """What a cycle would do if the document in the body were the stream's; changes nothing."""
    return await control.retention.plan(given.stream, change=given.document, at_ms=given["at_ms"])


@retention.add("GET", f"{STREAM}/retention/explain", query=[Parameter("position", Kind.CUT, _FORMS)])
async def explain_retention(control: ControlPlane, given: Given) -> Explanation:
    """Who holds each byte, or why the data at a position is still there or was deleted; changes nothing."""
    said = given["position"]
    position = None if said is None else await _position(control, given.stream, said, field="position")
    return await control.retention.explain(given.stream, position=position)


@retention.add("GET", f"{STREAM}/retention/reclaim")
async def reclaim_report(control: ControlPlane, given: Given) -> ReclaimReport:
    """What was freed, what is pending, and why."""
    return await control.retention.reclaim(given.stream)


@retention.add("GET", f"{STREAM}/retention/forecast")
async def forecast_retention(control: ControlPlane, given: Given) -> Forecast:
    """When a limit, a quota or the disk is reached at the rates of the last hour."""
    return await control.retention.forecast(given.stream)


@retention.add("GET", f"{STREAM}/retention/evictions", under="evictions")
async def list_evictions(control: ControlPlane, given: Given) -> Sequence[Eviction]:
    """The latest times that subscribers lost unread data, oldest first."""
    return await control.retention.list_evictions(given.stream)


@retention.add("POST", f"{STREAM}/retention/run")
async def run_retention(control: ControlPlane, given: Given) -> RetentionRun:
    """Run one retention cycle now."""
    return await control.retention.run(given.stream)


@retention.add(
    "POST",
    f"{STREAM}/retention/undo",
    query=[
        Parameter(
            "since_ms",
            Kind.WHOLE,
            "Undo all truncations since this time, in milliseconds since 1970; absent: only the last one",
        )
    ],
)
async def undo_truncation(control: ControlPlane, given: Given) -> Undone:
    """Undo the last truncation, or all since a time, while their grace lasts."""
    return undone_document(await control.retention.undo(given.stream, since_ms=given["since_ms"]))


@retention.add("POST", f"{STREAM}/truncate", query=[DRY_RUN], body=[CUT, DRY_RUN])
async def truncate_stream(control: ControlPlane, given: Given) -> Cut | Removal:
    """Delete everything before a cut, and return the new head; 409 if a hold covers it.

    A cut at the head changes nothing.
    """
    cut = await _position(control, given.stream, given["cut"], field="cut")
    if given["dry_run"]:
        return await plan_removal(control, given.stream, cut)
    await control.streams.truncate(given.stream, cut)
    return cut_document(await control.cuts.head(given.stream))


# --- deleted streams -------------------------------------------------------------------------------------------


@retention.add(
    "GET", "/v1/deleted-streams", query=[Parameter("scope", Kind.TEXT, "Only those in this scope")], under="streams"
)
async def list_deleted_streams(control: ControlPlane, given: Given) -> Sequence[DeletedStream]:
    """Deleted streams that can be restored, also of deleted scopes; sorted by scope, stream, incarnation."""
    return await control.streams.list_deleted(given["scope"])


@retention.add(
    "POST",
    f"{STREAM}/restore",
    query=[Parameter("incarnation", Kind.WHOLE, "Which one, if several had this name; absent: the one deleted last")],
)
async def restore_stream(control: ControlPlane, given: Given) -> RestoredStream:
    """Restore a deleted stream whose grace has not ended."""
    return await control.streams.restore(given.stream, incarnation=given["incarnation"])


# --- holds -----------------------------------------------------------------------------------------------------


@holds.add(
    "GET",
    "/v1/holds",
    query=[
        Parameter("scope", Kind.TEXT, "Only those in this scope"),
        Parameter("stream", Kind.TEXT, "Only those on this stream (`scope/stream`), including holds on its scope"),
    ],
    under="holds",
)
async def list_holds(control: ControlPlane, given: Given) -> Sequence[HoldInfo]:
    """Holds in force, sorted by scope, stream, id."""
    scope, stream = given["scope"], given["stream"]
    if scope is not None and stream is not None:
        raise InvalidArgumentError("give a scope or a stream (as scope/stream), not both", scope=scope, stream=stream)
    target: PolicyTarget = scope if stream is None else StreamName.parse(stream)
    return await control.holds.list(target)


@holds.add(
    "POST",
    "/v1/holds",
    body=[
        Parameter("scope", Kind.TEXT, "The scope whose streams are held; or give `stream`"),
        Parameter("stream", Kind.TEXT, "The stream that is held, as `scope/stream`; or give `scope`"),
        Parameter("owner", Kind.TEXT, "Who places it", needed=True),
        Parameter("reason", Kind.TEXT, "Why", needed=True),
        Parameter("until_ms", Kind.WHOLE, "When it ends, in milliseconds since 1970; absent: when it is released"),
        Parameter("id", Kind.TEXT, "A name for it; absent: one is generated"),
        Parameter("cut", Kind.CUT, f"Hold only data from this cut on: {_FORMS}"),
    ],
    status=201,
)
async def add_hold(control: ControlPlane, given: Given) -> HoldInfo:
    """Place a hold on a scope or a stream. Placing the same hold again changes nothing and returns the same answer."""
    target, said, cut = held_of(given["scope"], given["stream"]), given["cut"], None
    if said is not None and not isinstance(target, StreamName):
        raise InvalidArgumentError("a cut needs a stream, but the hold is on a scope", field="cut")
    if said and isinstance(target, StreamName):
        cut = await _position(control, target, said, field="cut")
    return await control.holds.add(
        target, owner=given["owner"], reason=given["reason"], until_ms=given["until_ms"], cut=cut, hold_id=given["id"]
    )


@holds.add(
    "PUT",
    "/v1/holds/{id}",
    body=[
        Parameter("owner", Kind.TEXT, "Who extends it; recorded", needed=True),
        Parameter("until_ms", Kind.WHOLE, "Its new end, in milliseconds since 1970; absent: when it is released"),
    ],
)
async def extend_hold(control: ControlPlane, given: Given) -> HoldInfo:
    """Let a hold end later, without a gap, and return it; 400 if it would end earlier."""
    return await control.holds.extend(given.path["id"], owner=given["owner"], until_ms=given["until_ms"])


@holds.add("DELETE", "/v1/holds/{id}", query=[Parameter("owner", Kind.TEXT, "Who lifts it; recorded", needed=True)])
async def release_hold(control: ControlPlane, given: Given) -> HoldInfo:
    """Lift a hold and return it."""
    return await control.holds.release(given.path["id"], owner=given["owner"])


# --- erasures: docs/formats/erasure.md -------------------------------------------------------------------------


@erasures.add(
    "GET",
    "/v1/erasures",
    query=[Parameter("stream", Kind.TEXT, "Only those of this stream (`scope/stream`)")],
    under="erasures",
)
async def list_erasures(control: ControlPlane, given: Given) -> Sequence[Erasure]:
    """Erasures of events and their states, in the order of their receipts."""
    text = given["stream"]
    return await control.erasures.list(None if text is None else StreamName.parse(text))


@erasures.add("GET", "/v1/erasures/{id}")
async def get_erasure(control: ControlPlane, given: Given) -> Erasure:
    """The state of an erasure, with its receipt once it is done."""
    return await control.erasures.get(given.path["id"])


@erasures.add(
    "POST",
    "/v1/erasures/{id}/withdraw",
    body=[
        Parameter("who", Kind.TEXT, "Who withdraws it", needed=True),
        Parameter("why", Kind.TEXT, "Why", needed=True),
    ],
)
async def withdraw_erasure(control: ControlPlane, given: Given) -> Erasure:
    """Withdraw an erasure that is not decided yet. A repeated call changes nothing."""
    return await control.erasures.withdraw(given.path["id"], who=given["who"], why=given["why"])


_WHO_AND_WHY = [
    Parameter("who", Kind.TEXT, "Who does it; recorded", needed=True),
    Parameter("why", Kind.TEXT, "Why; recorded", needed=True),
]


@erasures.add("GET", "/v1/erasure-cases", under="cases")
async def list_cases(control: ControlPlane, given: Given) -> Sequence[ErasureCase]:
    """All cases of erasure; those that have not ended first, in the order in which they are due."""
    return await control.cases.list()


@erasures.add("GET", "/v1/erasure-cases/{id}")
async def get_case(control: ControlPlane, given: Given) -> ErasureCase:
    """A case of erasure, with the tables that have copies of its events."""
    return await control.cases.get(given.path["id"])


@erasures.add(
    "PUT",
    "/v1/erasure-cases/{id}",
    body=[
        Parameter("targets", Kind.TEXTS, "Streams (`scope/stream`), scopes, or `*`", needed=True),
        Parameter("values", Kind.TEXTS, "The person's values", needed=True),
        Parameter("json_field", Kind.TEXT, "The field of JSON events; absent: a value may be anywhere"),
        Parameter("due_ms", Kind.WHOLE, "When it should be verified, in milliseconds since 1970; absent: in 30 days"),
        Parameter("digests", Kind.FLAG, "Keep keyed digests in place of the values; needs `json_field`"),
        *_WHO_AND_WHY,
    ],
)
async def open_case(control: ControlPlane, given: Given) -> ErasureCase:
    """Open a case: erase the events of a person, now and until the case is closed. A repeated call does nothing."""
    field = given["json_field"]
    by = {"by": "payload contains"} if field is None else {"by": "json field", "field": field}
    return await control.cases.open(
        given.path["id"],
        targets=given["targets"],
        subject={**by, "values": given["values"]},
        who=given["who"],
        why=given["why"],
        due_ms=given["due_ms"],
        keep_values=not given["digests"],
    )


_TABLE = Parameter("table", Kind.TEXT, "The table, as the answer lists it", needed=True)
_OF_STREAM = Parameter("stream", Kind.TEXT, "The deleted stream, `scope/stream`", needed=True)


@erasures.add("POST", "/v1/erasures/{id}/confirm-table", body=[_TABLE, *_WHO_AND_WHY])
async def confirm_erased_table(control: ControlPlane, given: Given) -> Erasure:
    """Record the statement that a table of a deleted stream has no rows of the erased events. Nothing verifies it."""
    stated = {"who": given["who"], "why": given["why"]}
    return await control.erasures.confirm_table(given.path["id"], given["table"], **stated)


@erasures.add("POST", "/v1/erasure-cases/{id}/confirm-table", body=[_TABLE, _OF_STREAM, *_WHO_AND_WHY])
async def confirm_case_table(control: ControlPlane, given: Given) -> ErasureCase:
    """Record the statement that a table of a deleted stream has no rows of the person's events. Nothing verifies it."""
    stream = StreamName.parse(given["stream"])
    stated = {"who": given["who"], "why": given["why"]}
    return await control.cases.confirm_table(given.path["id"], given["table"], stream=stream, **stated)


_PENDING = Parameter("pending_tables", Kind.FLAG, "Close it also while tables have rows of its events")


@erasures.add("POST", "/v1/erasure-cases/{id}/close", body=[*_WHO_AND_WHY, _PENDING])
async def close_case(control: ControlPlane, given: Given) -> ErasureCase:
    """Close a verified case after a last search. A repeated call changes nothing."""
    pending = given["pending_tables"]
    return await control.cases.close(given.path["id"], who=given["who"], why=given["why"], pending_tables=pending)


@erasures.add("POST", "/v1/erasure-cases/{id}/withdraw", body=_WHO_AND_WHY)
async def withdraw_case(control: ControlPlane, given: Given) -> ErasureCase:
    """End a case without its proof. A repeated call changes nothing."""
    return await control.cases.withdraw(given.path["id"], who=given["who"], why=given["why"])


# --- subscribers -----------------------------------------------------------------------------------------------


@subscribers.add("GET", f"{STREAM}/subscribers", under="subscribers")
async def list_subscribers(control: ControlPlane, given: Given) -> Sequence[Subscriber]:
    """The stream's subscribers, with their lags."""
    return [subscriber_document(item) for item in await control.subscribers.describe(given.stream)]


@subscribers.add("GET", SUBSCRIBER)
async def get_subscriber(control: ControlPlane, given: Given) -> Subscriber:
    """One subscriber."""
    name = _subscriber(given)
    for item in await control.subscribers.describe(given.stream):
        if item.name == name:
            return subscriber_document(item)
    raise SubscriberNotFoundError("not a subscriber of the stream", stream=str(given.stream), subscriber=name[:120])


@subscribers.add("PUT", SUBSCRIBER, query=[DRY_RUN], body=[CUT, DRY_RUN])
async def move_subscriber(control: ControlPlane, given: Given) -> SubscriberMove:
    """Set a subscriber's acknowledged cut, forwards or backwards. Readers do not move."""
    cut = await _position(control, given.stream, given["cut"], field="cut")
    return await control.subscribers.move(given.stream, _subscriber(given), cut, dry_run=bool(given["dry_run"]))


@subscribers.add("DELETE", SUBSCRIBER)
async def remove_subscriber(control: ControlPlane, given: Given) -> None:
    """Remove a subscription; it holds no data from then on."""
    await control.subscribers.remove(given.stream, _subscriber(given))


def _subscriber(given: Given) -> str:
    return subscriber_name(given.stream, given.path["subscriber"])


OWN_CALLS: Sequence[RestCall] = (
    *streams.made,
    *retention.made,
    *holds.made,
    *approvals.made,
    *erasures.made,
    *evidence.made,
    *subscribers.made,
)
