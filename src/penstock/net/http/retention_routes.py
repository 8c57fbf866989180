"""Retention over HTTP, beside Pravega's calls under ``/v1``: policies, the planner's faces, holds, subscribers.

Where data goes away nothing is guessed: an unknown field or parameter is refused, never passed over.
Source: docs/reference/rest.md, "Retention".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.codec.answers import as_json
from penstock.codec.control.effective_policy import encode_effective
from penstock.codec.control.policy_document import decode_document, encode_document, encode_hold
from penstock.model.cuts import ENDS, StreamCut
from penstock.model.errors import InvalidArgumentError, SubscriberNotFoundError
from penstock.model.names import StreamName
from penstock.model.retention import EMPTY, PolicyTarget
from penstock.net.http import retention_documents as mapping
from penstock.net.http.reading_requests import Handler, Query, json_body, json_response, nothing, path_route, stream_of
from penstock.net.removal_plan import plan_removal
from penstock.ports.control.plane import ControlPlane


class RetentionRest:
    """What users may say, ask and do about retention."""

    def __init__(self, controller: ControlPlane) -> None:
        self._controller = controller

    def routes(self) -> Sequence[Route]:
        scope = "/v1/scopes/{scope}"
        stream = f"{scope}/streams/{{stream}}"
        level = {"GET": self.get_policy, "PUT": self.set_policy, "DELETE": self.clear_policy}
        paths: Mapping[str, Mapping[str, Handler]] = {
            "/v1/retention": level,
            f"{scope}/retention": level,
            f"{stream}/retention": level,
            f"{stream}/retention/effective": {"GET": self.effective_policy},
            f"{stream}/retention/plan": {"GET": self.plan, "POST": self.plan_change},
            f"{stream}/retention/explain": {"GET": self.explain},
            f"{stream}/retention/reclaim": {"GET": self.reclaim},
            f"{stream}/retention/forecast": {"GET": self.forecast},
            f"{stream}/retention/evictions": {"GET": self.evictions},
            f"{stream}/retention/run": {"POST": self.run},
            f"{stream}/retention/undo": {"POST": self.undo},
            "/v1/deleted-streams": {"GET": self.deleted_streams},
            f"{stream}/restore": {"POST": self.restore_stream},
            f"{stream}/truncate": {"POST": self.truncate},
            "/v1/holds": {"GET": self.list_holds, "POST": self.add_hold},
            "/v1/holds/{id}": {"DELETE": self.release_hold},
            f"{stream}/subscribers": {"GET": self.list_subscribers},
            # The name of a subscriber is scope/group.
            f"{stream}/subscribers/{{subscriber:path}}": {
                "GET": self.get_subscriber,
                "PUT": self.move_subscriber,
                "DELETE": self.remove_subscriber,
            },
        }
        return [path_route(path, handlers) for path, handlers in paths.items()]

    # --- policies ----------------------------------------------------------------------------------------------

    async def get_policy(self, request: Request) -> Response:
        Query(request)
        return json_response(encode_document(await self._controller.policies.get(_target(request))))

    async def set_policy(self, request: Request) -> Response:
        """Replaces the document of this level. The answer is the document as it was understood."""
        Query(request)
        document = decode_document((await json_body(request)).rest())
        await self._controller.policies.set(_target(request), document)
        return json_response(encode_document(document))

    async def clear_policy(self, request: Request) -> Response:
        Query(request)
        await self._controller.policies.set(_target(request), EMPTY)
        return nothing()

    async def effective_policy(self, request: Request) -> Response:
        Query(request)
        return json_response(encode_effective(await self._controller.policies.effective(stream_of(request))))

    # --- the planner -------------------------------------------------------------------------------------------

    async def plan(self, request: Request) -> Response:
        at_ms = Query(request, "at_ms").whole("at_ms")
        return json_response(await self._controller.retention.plan(stream_of(request), at_ms=at_ms))

    async def plan_change(self, request: Request) -> Response:
        """As ``plan``, with the document in the body as if it were the stream's."""
        at_ms = Query(request, "at_ms").whole("at_ms")
        change = decode_document((await json_body(request)).rest())
        return json_response(await self._controller.retention.plan(stream_of(request), change=change, at_ms=at_ms))

    async def explain(self, request: Request) -> Response:
        stream, text = stream_of(request), Query(request, "position").text("position")
        position = None if text is None else await self._position(stream, _parsed(text), field="position")
        return json_response(await self._controller.retention.explain(stream, position=position))

    async def reclaim(self, request: Request) -> Response:
        Query(request)
        return json_response(await self._controller.retention.reclaim(stream_of(request)))

    async def forecast(self, request: Request) -> Response:
        Query(request)
        return json_response(await self._controller.retention.forecast(stream_of(request)))

    async def evictions(self, request: Request) -> Response:
        Query(request)
        return json_response({"evictions": list(await self._controller.retention.list_evictions(stream_of(request)))})

    async def run(self, request: Request) -> Response:
        Query(request)
        return json_response(await self._controller.retention.run(stream_of(request)))

    async def deleted_streams(self, request: Request) -> Response:
        found = await self._controller.streams.list_deleted(Query(request, "scope").text("scope"))
        return json_response({"streams": [mapping.deleted_document(item) for item in found]})

    async def restore_stream(self, request: Request) -> Response:
        incarnation = Query(request, "incarnation").whole("incarnation")
        restored = await self._controller.streams.restore(stream_of(request), incarnation=incarnation)
        return json_response(mapping.deleted_document(restored))

    async def undo(self, request: Request) -> Response:
        """Undoes the last truncation, or with ``since_ms`` all since then. Returns the new head, and the subscribers
        and truncations that were not restored."""
        since_ms = Query(request, "since_ms").whole("since_ms")
        found = as_json(await self._controller.retention.undo(stream_of(request), since_ms=since_ms))
        head = {"cut": found.pop("head_cut"), "positions": found.pop("head")}
        return json_response(head | found)

    async def truncate(self, request: Request) -> Response:
        """Truncates by hand and returns the new head. A cut at the head changes nothing. With ``dry_run``, in the body
        or the query, it only returns what would be deleted."""
        query = Query(request, "dry_run")
        stream, body = stream_of(request), await json_body(request)
        said, dry_run = body.take("cut"), body.flag("dry_run") or query.flag("dry_run")
        body.finish()
        cut = await self._position(stream, said, field="cut")
        if dry_run:
            return json_response(await plan_removal(self._controller, stream, cut))
        await self._controller.streams.truncate(stream, cut)
        return json_response(mapping.cut_document(await self._controller.cuts.head(stream)))

    async def _position(self, stream: StreamName, value: object, *, field: str) -> StreamCut:
        """A cut, which may also be one of the words of ``ENDS``."""
        match ENDS.get(value) if isinstance(value, str) else None:
            case "head":
                return await self._controller.cuts.head(stream)
            case "tail":
                return await self._controller.cuts.tail(stream)
            case _:
                return mapping.cut_of(stream, value, field=field)

    # --- holds -------------------------------------------------------------------------------------------------

    async def list_holds(self, request: Request) -> Response:
        query = Query(request, "scope", "stream")
        scope, stream = query.text("scope"), query.text("stream")
        if scope is not None and stream is not None:
            raise InvalidArgumentError(
                "give a scope or a stream (as scope/stream), not both", scope=scope, stream=stream
            )
        target: PolicyTarget = scope if stream is None else StreamName.parse(stream)
        found = await self._controller.holds.list(target)
        return json_response({"holds": [encode_hold(item) for item in found]})

    async def add_hold(self, request: Request) -> Response:
        """Placing the same hold again changes nothing, and is answered as the first time."""
        Query(request)
        body = await json_body(request)
        target = mapping.held_of(body)
        owner, reason = body.need_text("owner"), body.need_text("reason")
        until_ms, hold_id, said = body.whole("until_ms"), body.text("id"), body.take("cut")
        body.finish()
        if said is not None and not isinstance(target, StreamName):
            raise InvalidArgumentError("a cut belongs to a stream, and the hold is on a scope", field="cut")
        cut = await self._position(target, said, field="cut") if isinstance(target, StreamName) and said else None
        hold = await self._controller.holds.add(
            target, owner=owner, reason=reason, until_ms=until_ms, cut=cut, hold_id=hold_id
        )
        return json_response(encode_hold(hold), 201)

    async def release_hold(self, request: Request) -> Response:
        """``owner``: who lifts it; that is recorded. The answer is the hold that is no more."""
        owner = Query(request, "owner").text("owner")
        if not owner:
            raise InvalidArgumentError("say who lifts the hold", parameter="owner")
        hold = await self._controller.holds.release(request.path_params["id"], owner=owner)
        return json_response(encode_hold(hold))

    # --- subscribers -------------------------------------------------------------------------------------------

    async def list_subscribers(self, request: Request) -> Response:
        Query(request)
        found = await self._controller.subscribers.describe(stream_of(request))
        return json_response({"subscribers": [mapping.subscriber_document(item) for item in found]})

    async def get_subscriber(self, request: Request) -> Response:
        Query(request)
        stream, name = _subscriber(request)
        for item in await self._controller.subscribers.describe(stream):
            if item.name == name:
                return json_response(mapping.subscriber_document(item))
        raise SubscriberNotFoundError("not a subscriber of the stream", stream=str(stream), subscriber=name[:120])

    async def move_subscriber(self, request: Request) -> Response:
        """Sets the acknowledged cut, forwards or backwards; with ``dry_run``, in the body or the query, only tells what
        would be passed."""
        query = Query(request, "dry_run")
        stream, name = _subscriber(request)
        body = await json_body(request)
        said, dry_run = body.take("cut"), body.flag("dry_run") or query.flag("dry_run")
        body.finish()
        cut = await self._position(stream, said, field="cut")
        return json_response(await self._controller.subscribers.move(stream, name, cut, dry_run=dry_run))

    async def remove_subscriber(self, request: Request) -> Response:
        Query(request)
        stream, name = _subscriber(request)
        await self._controller.subscribers.remove(stream, name)
        return nothing()


def _target(request: Request) -> PolicyTarget:
    """The level that the path names: a stream, a scope, or the server."""
    if "stream" in request.path_params:
        return stream_of(request)
    scope: str | None = request.path_params.get("scope")
    return scope


def _subscriber(request: Request) -> tuple[StreamName, str]:
    stream = stream_of(request)
    return stream, mapping.subscriber_name(stream, request.path_params["subscriber"])


def _parsed(text: str) -> object:
    """A cut in a query: an object of offsets where it looks like one, else text."""
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError("the position is not JSON", parameter="position", reason=str(error)[:200]) from error
