"""Pravega's REST interface: ``/v1`` and ``/ping``, answered by a ``ControlPlane``.

Paths, fields and statuses are those of Pravega's controller, so that its scripts work here. Two answers follow that
server rather than its description: scaling events are a bare array, and a maximum is never returned. Source:
docs/reference/rest.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.model.errors import InvalidArgumentError, NotFoundError, ScopeNotFoundError
from penstock.model.names import StreamName, check_name
from penstock.net.http import pravega_documents as mapping
from penstock.net.http.reading_requests import Handler, Query, json_body, json_response, nothing, path_route, stream_of
from penstock.net.removal_plan import plan_removal
from penstock.net.tasks import together
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.streams import change_config

ReadersOf = Callable[[str, str], Awaitable[Sequence[str] | None]]
"""The readers of a group that are online (by scope and name), or None if that is not known."""

_AT_ONCE = 16  # streams described at the same time
_SEALED = "SEALED"
_LONG_MAX_DIGITS = 19  # decimal digits of the largest Java long


class PravegaRest:
    """Scopes, streams and reader groups."""

    def __init__(
        self,
        controller: ControlPlane,
        *,
        readers_of: ReadersOf,
    ) -> None:
        self._controller = controller
        self._readers_of = readers_of

    def routes(self) -> Sequence[Route]:
        scope = "/v1/scopes/{scope}"
        stream = f"{scope}/streams/{{stream}}"
        paths: Mapping[str, Mapping[str, Handler]] = {
            "/v1/scopes": {"GET": self.list_scopes, "POST": self.create_scope},
            scope: {"GET": self.get_scope, "DELETE": self.delete_scope},
            f"{scope}/streams": {"GET": self.list_streams, "POST": self.create_stream},
            stream: {"GET": self.get_stream, "PUT": self.update_stream, "DELETE": self.delete_stream},
            f"{stream}/state": {"PUT": self.update_state},
            f"{stream}/scaling-events": {"GET": self.scaling_events},
            f"{scope}/readergroups": {"GET": self.list_groups},
            f"{scope}/readergroups/{{group}}": {"GET": self.get_group, "DELETE": self.delete_group},
        }
        return [path_route(path, handlers) for path, handlers in paths.items()]

    # --- scopes ------------------------------------------------------------------------------------------------

    async def list_scopes(self, _request: Request) -> Response:
        names: list[str] = []
        while page := await self._controller.scopes.list(after=names[-1] if names else ""):
            names.extend(page)
        return json_response({"scopes": [{"scopeName": name} for name in names]})

    async def create_scope(self, request: Request) -> Response:
        body = await json_body(request)
        name = check_name("scope", body.need_text("scopeName"))
        body.finish()
        await self._controller.scopes.create(name)
        return json_response({"scopeName": name}, 201)

    async def get_scope(self, request: Request) -> Response:
        scope = await self._scope(request)
        return json_response({"scopeName": scope})

    async def delete_scope(self, request: Request) -> Response:
        Query(request)
        scope = await self._scope(request)
        await self._controller.scopes.delete(scope)
        return nothing()

    async def _scope(self, request: Request) -> str:
        """The scope that the path names. Raises ScopeNotFoundError."""
        scope = str(request.path_params["scope"])
        if not await self._controller.scopes.exists(scope):
            raise ScopeNotFoundError("no such scope", scope=scope[:80])
        return scope

    # --- streams -----------------------------------------------------------------------------------------------

    async def list_streams(self, request: Request) -> Response:
        """``filter_type=showInternalStreams`` lists the internal ones instead; ``filter_type=tag`` takes a
        ``filter_value``. Older servers spell the first ``showInternalStreams=true``."""
        kind, value = request.query_params.get("filter_type"), request.query_params.get("filter_value")
        if kind not in (None, "showInternalStreams", "tag"):
            raise InvalidArgumentError("filter_type must be showInternalStreams or tag", filter_type=kind[:60])
        if kind == "tag" and not value:
            raise InvalidArgumentError("filter_type=tag needs a filter_value")
        internal = kind == "showInternalStreams" or request.query_params.get("showInternalStreams") == "true"
        scope, tag = await self._scope(request), value if kind == "tag" else None
        found: list[mapping.Document] = []
        after = ""
        while page := await self._controller.streams.list(scope, tag=tag, after=after):
            after = page[-1]
            shown = [name for name in page if tag is not None or name.startswith("_") == internal]
            found.extend(await self._documents([StreamName(scope, name) for name in shown]))
        return json_response({"streams": found})

    async def _documents(self, streams: Sequence[StreamName]) -> Sequence[mapping.Document]:
        """The streams' documents, in order, without streams deleted meanwhile."""
        found: list[mapping.Document | None] = []
        for start in range(0, len(streams), _AT_ONCE):
            found += await together([self._document(item) for item in streams[start : start + _AT_ONCE]])
        return [document for document in found if document is not None]

    async def _document(self, stream: StreamName) -> mapping.Document | None:
        try:
            return mapping.stream_document(stream, await self._controller.streams.config(stream))
        except NotFoundError:
            return None

    async def create_stream(self, request: Request) -> Response:
        body = await json_body(request)
        stream = StreamName(request.path_params["scope"], body.need_text("streamName"))
        check_name("stream", stream.stream)
        said = body.text("scopeName")
        if said is not None and said != stream.scope:
            body.refuse("the name in the body differs from the one in the path", "scopeName", said)
        config = mapping.config_of(body, None)
        await self._controller.streams.create(stream, config)
        return json_response(mapping.stream_document(stream, config), 201)

    async def get_stream(self, request: Request) -> Response:
        stream = stream_of(request)
        return json_response(mapping.stream_document(stream, await self._controller.streams.config(stream)))

    async def update_stream(self, request: Request) -> Response:
        """Replaces the whole configuration: values that the body leaves out are unset."""
        stream = stream_of(request)
        body = await json_body(request)
        config = await change_config(
            self._controller.streams, stream, lambda before: mapping.config_of(body, stream, before)
        )
        return json_response(mapping.stream_document(stream, config))

    async def delete_stream(self, request: Request) -> Response:
        """Deletes a sealed stream. With ``dry_run`` it only returns what would be deleted."""
        stream = stream_of(request)
        if Query(request, "dry_run").flag("dry_run"):
            return json_response(await plan_removal(self._controller, stream, None))
        await self._controller.streams.delete(stream)
        return nothing()

    async def update_state(self, request: Request) -> Response:
        body = await json_body(request)
        state = body.need_text("streamState")
        if state != _SEALED:
            body.refuse(f"streamState must be {_SEALED}", "streamState", state)
        body.finish()
        await self._controller.streams.seal(stream_of(request))
        return json_response({"streamState": _SEALED})

    async def scaling_events(self, request: Request) -> Response:
        start_ms, end_ms = _time(request, "from"), _time(request, "to")
        mapping.check_span(start_ms, end_ms)
        epochs = await self._controller.layout.epochs(stream_of(request))
        return json_response(mapping.scaling_events(epochs, start_ms=start_ms, end_ms=end_ms))

    # --- reader groups -----------------------------------------------------------------------------------------

    async def list_groups(self, request: Request) -> Response:
        scope = await self._scope(request)
        names = sorted(await self._controller.groups.list(scope))
        return json_response({"readerGroups": [{"readerGroupName": name} for name in names]})

    async def get_group(self, request: Request) -> Response:
        scope, name = request.path_params["scope"], request.path_params["group"]
        group = await self._controller.groups.get(scope, name)
        return json_response(mapping.group_document(group, await self._readers_of(scope, name)))

    async def delete_group(self, request: Request) -> Response:
        Query(request)
        await self._controller.groups.delete(request.path_params["scope"], request.path_params["group"])
        return nothing()


def _time(request: Request, name: str) -> int:
    """Milliseconds since the epoch, from the query, which may have other parameters. Raises InvalidArgumentError."""
    text = request.query_params.get(name)
    if text is None:
        raise InvalidArgumentError("parameter is missing", parameter=name)
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONG_MAX_DIGITS):
        raise InvalidArgumentError("parameter is not a time in milliseconds", parameter=name, value=text[:60])
    return int(text)
