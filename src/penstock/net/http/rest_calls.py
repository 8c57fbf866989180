"""Our own calls over HTTP, each declared once: the declaration yields the route and its part of the API description.

A declaration is a decorated function: verb, path, parameters and body; its name, docstring and return type supply the
rest. Because calls delete data, nothing is guessed: an unknown field or parameter is refused. Source:
docs/reference/rest.md, "Retention".
"""

from __future__ import annotations

import enum
import inspect
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, get_type_hints

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.codec.control.policy_document import decode_document
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.retention import EMPTY, PolicyDocument, PolicyTarget
from penstock.model.values.dataclass import dataclass
from penstock.net.http.reading_requests import (
    Fields,
    Handler,
    Query,
    json_body,
    json_response,
    nothing,
    path_route,
    stream_of,
)
from penstock.ports.control.plane import ControlPlane

SCOPE = "/v1/scopes/{scope}"
STREAM = f"{SCOPE}/streams/{{stream}}"
"""Paths of a scope and of a stream."""


class Kind(enum.Enum):
    """The type of a query parameter or a body field. ``CUT``: any form of a cut, not parsed yet.
    ``TEXTS``: a list of texts, in a body only."""

    TEXT = "text"
    WHOLE = "whole"
    FLAG = "flag"
    CUT = "cut"
    TEXTS = "texts"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a query or a field of a body. ``about`` describes it for users."""

    name: str
    kind: Kind
    about: str
    needed: bool = False

    def in_query(self, query: Query) -> Any:
        """Its value, None (a flag: False) if it is absent. Raises InvalidArgumentError."""
        value = _IN_QUERY[self.kind](query, self.name)
        if self.needed and value in (None, ""):
            raise InvalidArgumentError("parameter is missing", parameter=self.name)
        return value

    def in_body(self, body: Fields) -> Any:
        """As ``in_query``."""
        value = _IN_BODY[self.kind](body, self.name)
        if self.needed and value is None:
            body.refuse("field is missing", self.name)
        return value


def _cut_in_query(query: Query, name: str) -> object:
    """A cut in a query: an object of offsets if it looks like one, else text."""
    text = query.text(name)
    if text is None or not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError("the position is not JSON", parameter=name, reason=str(error)[:200]) from error


_IN_QUERY: Mapping[Kind, Callable[[Query, str], Any]] = {
    Kind.TEXT: Query.text,
    Kind.WHOLE: Query.whole,
    Kind.FLAG: Query.flag,
    Kind.CUT: _cut_in_query,
}
_IN_BODY: Mapping[Kind, Callable[[Fields, str], Any]] = {
    Kind.TEXT: Fields.text,
    Kind.WHOLE: Fields.whole,
    Kind.FLAG: Fields.flag,
    Kind.CUT: Fields.take,
    Kind.TEXTS: Fields.texts,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The contents of a request. ``path``: names in its path. ``values``: parameters and fields, None if absent.
    ``document``: the policy document in its body, ``EMPTY`` for a call that takes none."""

    path: Mapping[str, str]
    target: PolicyTarget
    values: Mapping[str, Any]
    document: PolicyDocument

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def stream(self) -> StreamName:
        """The stream that the path names."""
        return StreamName(self.path["scope"], self.path["stream"])


Function: TypeAlias = Callable[[ControlPlane, Given], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestCall:
    """One call.

    ``path``: in Starlette's form. ``name``: the operation id. ``body``: the fields, None for a call without a body;
    ``takes_policy``: the body is a policy document. ``under``: the field that holds the answer if it is a sequence.
    """

    verb: str
    path: str
    name: str
    tag: str
    function: Function
    query: Sequence[Parameter]
    body: Sequence[Parameter] | None
    takes_policy: bool
    under: str
    status: int

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0].removesuffix(".")

    @property
    def answer(self) -> Any:
        """The type of the answer; NoneType if it has no body."""
        return get_type_hints(self.function, include_extras=True)["return"]

    async def respond(self, control: ControlPlane, request: Request) -> Response:
        """Read the request, make the call, write the answer. Raises what any of them raises."""
        found = await self.function(control, await self._read(request))
        if found is None:
            return nothing()
        return json_response({self.under: found} if self.under else found, self.status)

    async def _read(self, request: Request) -> Given:
        query, document = Query(request, *(item.name for item in self.query)), EMPTY
        values = {item.name: item.in_query(query) for item in self.query}
        if self.takes_policy:
            document = decode_document((await json_body(request)).rest())
        elif self.body is not None:
            fields = await json_body(request)
            for item in self.body:
                found = item.in_body(fields)
                # A flag may be in the query, in the body, or in both.
                values[item.name] = found or values[item.name] if item.name in values else found
            fields.finish()
        return Given(path=request.path_params, target=_target(request), values=values, document=document)


def _target(request: Request) -> PolicyTarget:
    """The level that the path names: a stream, a scope, or the server."""
    return stream_of(request) if "stream" in request.path_params else request.path_params.get("scope")


class Calls:
    """The calls of one part of the description."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self.made: list[RestCall] = []

    def add(
        self,
        verb: str,
        path: str,
        *,
        name: str = "",
        query: Sequence[Parameter] = (),
        body: Sequence[Parameter] | None = None,
        takes_policy: bool = False,
        under: str = "",
        status: int = 200,
    ) -> Callable[[Function], Function]:
        """Declare a call; see ``RestCall``. The function is returned unchanged. ``name``: defaults to the
        function's."""

        def declared(function: Function) -> Function:
            first, *rest = function.__name__.split("_")
            call = RestCall(
                verb=verb,
                path=path,
                name=name or first + "".join(map(str.capitalize, rest)),
                tag=self._tag,
                function=function,
                query=query,
                body=body,
                takes_policy=takes_policy,
                under=under,
                status=status,
            )
            self.made.append(call)
            return function

        return declared


def routes_of(calls: Sequence[RestCall], control: ControlPlane) -> Sequence[Route]:
    """One route for each path. The control plane is borrowed."""
    paths: dict[str, dict[str, Handler]] = defaultdict(dict)
    for call in calls:
        paths[call.path][call.verb] = _handler(call, control)
    return [path_route(path, handlers) for path, handlers in paths.items()]


def _handler(call: RestCall, control: ControlPlane) -> Handler:
    async def handle(request: Request) -> Response:
        return await call.respond(control, request)

    return handle
