"""Parses requests: JSON bodies field by field, queries, names in paths; and routes that do so.

Every fault in a request raises ``InvalidArgumentError`` with the path of the field, or a ``Refusal``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.model.errors import InvalidArgumentError, NotFoundError
from penstock.model.names import StreamName
from penstock.model.policies import LONG_MAX
from penstock.net.http.guard import is_json
from penstock.net.http.http_errors import JSON, refused
from penstock.net.http.schemas import to_json

Handler = Callable[[Request], Awaitable[Response]]


def path_route(path: str, handlers: Mapping[str, Handler]) -> Route:
    """One path and its methods; any other method is answered 405 with a list of the allowed ones."""

    async def dispatch(request: Request) -> Response:
        # Starlette adds HEAD to GET; the body of its answer is dropped.
        method = "GET" if request.method == "HEAD" else request.method
        return await handlers[method](request)

    return Route(path, dispatch, methods=list(handlers))


def json_response(value: object, status: int = 200, *, headers: Mapping[str, str] | None = None) -> Response:
    """The value as compact JSON; it may contain answers of our calls."""
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=to_json).encode()
    return Response(body, status_code=status, media_type=JSON, headers=headers)


def nothing(status: int = 204) -> Response:
    """An answer without a body."""
    return Response(status_code=status)


def stream_of(request: Request) -> StreamName:
    """The stream that the path names. It is not checked whether it exists."""
    return StreamName(request.path_params["scope"], request.path_params["stream"])


async def json_body(request: Request) -> Fields:
    """The fields of the object in the body. Raises Refusal (415), InvalidArgumentError."""
    content_type = request.headers.get("content-type", "")
    if not is_json(content_type):
        raise refused(415, "send the body as application/json", content_type=content_type[:120])
    return Fields(parse_body(await request.body()))


def parse_body(data: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises InvalidArgumentError."""
    try:
        value = json.loads(data, object_pairs_hook=_distinct, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError("the body is not JSON", reason=str(error)[:200]) from error
    if not isinstance(value, dict):
        raise InvalidArgumentError("the body is not a JSON object", type=type(value).__name__)
    return value


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        # In one pass: a body may hold a hundred thousand fields.
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise InvalidArgumentError("a field appears twice", field=twice[:80])
    return fields


def _refuse_constant(text: str) -> NoReturn:
    raise InvalidArgumentError("not a JSON number", value=text)


class Fields:
    """The fields of a JSON object, taken one by one; ``finish`` refuses fields that were not taken.

    A misspelt field must not count as an absent one: an absent field may cause deletion of data. ``null`` means absent.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = dict(values)
        self._path = path

    def take(self, name: str) -> Any:
        """The raw value, or None."""
        return self._values.pop(name, None)

    def rest(self) -> dict[str, Any]:
        """All fields that were not taken."""
        values, self._values = self._values, {}
        return values

    def where(self, name: str) -> str:
        return f"{self._path}{name}"

    def text(self, name: str) -> str | None:
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            self.refuse("field is not text", name, value)
        return value

    def need_text(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            self.refuse("field is missing", name)
        return value

    def whole(self, name: str, *, limit: int = LONG_MAX) -> int | None:
        """A whole number from 0 to ``limit``."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse("field is not a whole number", name, value)
        if not 0 <= value <= limit:
            self.refuse("field is out of range", name, value)
        return value

    def need_whole(self, name: str, *, limit: int = LONG_MAX) -> int:
        value = self.whole(name, limit=limit)
        if value is None:
            self.refuse("field is missing", name)
        return value

    def flag(self, name: str) -> bool:
        """True or false; false if absent."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            self.refuse("field is not true or false", name, value)
        return bool(value)

    def texts(self, name: str) -> tuple[str, ...] | None:
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.refuse("field is not a list of texts", name, value)
        return tuple(value)

    def inner(self, name: str) -> Fields | None:
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse("field is not an object", name, value)
        return Fields(value, f"{self.where(name)}.")

    def finish(self) -> None:
        for name in self._values:
            self.refuse("field is not known", name)

    def refuse(self, message: str, name: str, value: object = None) -> NoReturn:
        shown = {} if value is None else {"value": repr(value)[:60]}
        raise InvalidArgumentError(message, field=self.where(name)[:120], **shown)


class Query:
    """The parameters of a query, at most one of each; unknown ones are refused."""

    def __init__(self, request: Request, *known: str) -> None:
        for name in request.query_params:
            if name not in known:
                raise InvalidArgumentError("parameter is not known", parameter=name[:80], known=", ".join(known))
            if len(request.query_params.getlist(name)) > 1:
                raise InvalidArgumentError("parameter is given twice", parameter=name[:80])
        self._values = request.query_params

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def whole(self, name: str) -> int | None:
        """A whole number from 0 to the largest long."""
        value = self._values.get(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdecimal() and len(value) < 20 and int(value) <= LONG_MAX):
            raise InvalidArgumentError("parameter is not a whole number", parameter=name, value=value[:60])
        return int(value)

    def need_whole(self, name: str) -> int:
        value = self.whole(name)
        if value is None:
            raise InvalidArgumentError("parameter is missing", parameter=name)
        return value

    def flag(self, name: str) -> bool:
        """``true`` or ``false``; false if absent."""
        value = self._values.get(name, "false")
        if value not in ("true", "false"):
            raise InvalidArgumentError("parameter must be true or false", parameter=name, value=value[:60])
        return value == "true"


async def no_such_path(scope: Any, receive: Any, send: Any) -> None:
    """The answer if no route matches."""
    raise NotFoundError("no such path", path=scope["path"][:200])
