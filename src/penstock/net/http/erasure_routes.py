"""Erasures over HTTP: their states, and the withdrawal of those that are not decided. Source: docs/reference/rest.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.model.names import StreamName
from penstock.net.http.reading_requests import Handler, Query, json_body, json_response, path_route
from penstock.ports.control.plane import ControlPlane


class ErasureRest:
    """The calls on ``/v1/erasures``. Answers have the form of docs/formats/erasure.md."""

    def __init__(self, controller: ControlPlane) -> None:
        self._controller = controller

    def routes(self) -> Sequence[Route]:
        paths: Mapping[str, Mapping[str, Handler]] = {
            "/v1/erasures": {"GET": self.list},
            "/v1/erasures/{id}": {"GET": self.get},
            "/v1/erasures/{id}/withdraw": {"POST": self.withdraw},
        }
        return [path_route(path, handlers) for path, handlers in paths.items()]

    async def list(self, request: Request) -> Response:
        text = Query(request, "stream").text("stream")
        found = await self._controller.erasures.list(None if text is None else StreamName.parse(text))
        return json_response({"erasures": list(found)})

    async def get(self, request: Request) -> Response:
        Query(request)
        return json_response(await self._controller.erasures.get(request.path_params["id"]))

    async def withdraw(self, request: Request) -> Response:
        """Withdraw the erasure. A repeated call changes nothing."""
        Query(request)
        body = await json_body(request)
        who, why = body.need_text("who"), body.need_text("why")
        body.finish()
        return json_response(await self._controller.erasures.withdraw(request.path_params["id"], who=who, why=why))
