"""Pravega's calls on scopes and the lists of their contents, answered by a ``ControlPlane``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from penstock.model.errors import InvalidArgumentError, NotFoundError, RetentionHoldError, ScopeNotFoundError
from penstock.model.names import MARK_PREFIX, SYSTEM_SCOPE, StreamName, check_name
from penstock.net.access.guarded import check_may
from penstock.net.grpc import mapping
from penstock.net.grpc.dispatch import Handler
from penstock.net.proto import Controller_pb2 as pb
from penstock.ports.control.layout import Endpoint
from penstock.ports.control.plane import ControlPlane

_AFTER_MARKS = MARK_PREFIX + "~"
"""Behind each name of a stream of watermarks: no name contains a tilde."""


class ScopeCalls:
    """Scopes and the lists of their contents. A list ends with an empty page; the token is the last name of a page."""

    def __init__(self, controller: ControlPlane, own_address: Callable[[], Endpoint]) -> None:
        self._controller = controller
        self._own_address = own_address

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "getControllerServerList": self.server_list,
            "createScope": self.create_scope,
            "deleteScope": self.delete_scope,
            "deleteScopeRecursive": self.delete_scope_recursive,
            "checkScopeExists": self.scope_exists,
            "listScopes": self.list_scopes,
            "listStreamsInScope": self.list_streams,
            "listStreamsInScopeForTag": self.list_streams_with_tag,
        }

    async def server_list(self, _request: pb.ServerRequest) -> pb.ServerResponse:
        own = self._own_address()
        return pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint=own.host, port=own.port)])

    async def create_scope(self, request: pb.ScopeInfo) -> pb.CreateScopeStatus:
        await self._controller.scopes.create(check_name("scope", request.scope))
        return pb.CreateScopeStatus()

    async def delete_scope(self, request: pb.ScopeInfo) -> pb.DeleteScopeStatus:
        scope = mapping.scope_of(request.scope)
        await self._controller.scopes.delete(scope)
        return pb.DeleteScopeStatus()

    async def delete_scope_recursive(self, request: pb.ScopeInfo) -> pb.DeleteScopeStatus:
        """Deletes groups first, because they hold streams; then users' streams, with their internal ones; then what is
        left. After an interruption it can be repeated. A hold in the scope makes it fail before anything is deleted."""
        scope = mapping.scope_of(request.scope)
        check_may(self._controller, "scopes.delete", scope=scope)
        if not await self._controller.scopes.exists(scope):
            raise ScopeNotFoundError("no such scope", scope=scope)
        if scope == SYSTEM_SCOPE:
            raise InvalidArgumentError("the store's own scope cannot be deleted", scope=scope)
        for hold in [item for item in await self._controller.holds.list(scope) if not item.is_undo]:
            raise RetentionHoldError(
                "a hold forbids the deletion of the scope", hold=hold.id, owner=hold.owner, reason=hold.reason
            )
        for group in await self._controller.groups.list(scope):
            await _unless_gone(self._controller.groups.delete(scope, group))
        for internal in (False, True):
            for name in await self._stream_names(scope):
                stream = StreamName(scope, name)
                if stream.is_internal == internal:
                    await _unless_gone(self._controller.streams.delete(stream, seal=True))
        for table in await self._table_names(scope):
            await _unless_gone(self._controller.tables.delete(scope, table))
        await self._controller.scopes.delete(scope)
        return pb.DeleteScopeStatus()

    async def _table_names(self, scope: str) -> list[str]:
        names: list[str] = []
        while page := await self._controller.tables.list(scope, after=names[-1] if names else ""):
            names.extend(page)
        return names

    async def _stream_names(self, scope: str) -> list[str]:
        names: list[str] = []
        while page := await self._controller.streams.list(scope, after=names[-1] if names else ""):
            names.extend(page)
        return names

    async def scope_exists(self, request: pb.ScopeInfo) -> pb.ExistsResponse:
        return pb.ExistsResponse(exists=await self._controller.scopes.exists(mapping.scope_of(request.scope)))

    async def list_scopes(self, request: pb.ScopesRequest) -> pb.ScopesResponse:
        token = request.continuationToken.token
        page = await self._controller.scopes.list(after=token)
        return pb.ScopesResponse(scopes=page, continuationToken=_token(page, token))

    async def list_streams(self, request: pb.StreamsInScopeRequest) -> pb.StreamsInScopeResponse:
        return await self._page(request.scope.scope, None, request.continuationToken.token)

    async def list_streams_with_tag(self, request: pb.StreamsInScopeWithTagRequest) -> pb.StreamsInScopeResponse:
        return await self._page(request.scope.scope, request.tag, request.continuationToken.token)

    async def _page(self, scope: str, tag: str | None, token: str) -> pb.StreamsInScopeResponse:
        """Streams of watermarks are left out: clients seal and delete what is listed, and only the store may do that to
        these streams. The streams of reader groups stay: the Java client finds groups by them."""
        page = await self._controller.streams.list(mapping.scope_of(scope), tag=tag, after=token)
        if not page and not token and not await self._controller.scopes.exists(scope):
            raise ScopeNotFoundError("no such scope", scope=scope)
        shown = [name for name in page if not name.startswith(MARK_PREFIX)]
        if page and not shown:
            # An empty page would end the client's list.
            page = shown = list(await self._controller.streams.list(scope, tag=tag, after=_AFTER_MARKS))
        streams = [pb.StreamInfo(scope=scope, stream=name) for name in shown]
        return pb.StreamsInScopeResponse(streams=streams, continuationToken=_token(page, token))


def _token(page: Sequence[str], token: str) -> pb.ContinuationToken:
    """Always set, because clients read its text without checking that it is present."""
    return pb.ContinuationToken(token=page[-1] if page else token)


async def _unless_gone(step: Awaitable[object]) -> None:
    """Await the step. Another caller may have deleted the object since it was listed."""
    with suppress(NotFoundError):
        await step
