"""A real HTTP port over a store in memory, and a client that holds every answer against the port's own description."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import uvloop

from penstock.controller.controller import Controller
from penstock.controller.settings import ControllerSettings
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId, make_segment_id
from penstock.net.http.description import describe
from penstock.net.http.health import Checks
from penstock.net.http.http_limits import RestLimits
from penstock.net.http.http_server import GroupReaders, ProcessReports, RestServer
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.segmentstore.store import SegmentStore
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from penstock.testing.world import World

DESCRIPTION: Mapping[str, Any] = describe()
FIRST = make_segment_id(0, 0)
WRITER = UUID(int=77)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass
class Running:
    store: SegmentStore
    controller: Controller
    server: RestServer
    failures: dict[str, str] = field(default_factory=dict)
    online: dict[str, Sequence[str]] = field(default_factory=dict)

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request on a connection of its own. ``body`` is sent as JSON, ``data`` as it is."""
        content = data if body is None else json.dumps(body).encode()
        sent = {} if content is None else {"content-type": "application/json"}
        answer = await asyncio.to_thread(_call, self.server.port, method, path, content, sent | dict(headers or {}))
        check_described(method, path, answer)
        return answer

    async def get(self, path: str) -> Answer:
        return await self.call("GET", path)

    async def expect(self, status: int, method: str, path: str, body: object = None, **options: Any) -> Any:
        """The JSON of an answer that has this status; None where it has no body."""
        answer = await self.call(method, path, body, **options)
        assert answer.status == status, (method, path, answer.status, answer.data)
        return answer.json if answer.data else None

    async def append(self, stream: StreamName, data: bytes, segment: SegmentId = FIRST) -> int:
        """Append bytes that hold whole events; returns where the segment now ends."""
        name = segment_name(stream, segment)
        last = await self.store.setup_append(name, WRITER)
        number = 1 if last == NO_EVENT else last + 1
        request = Append(segment=name, writer=WRITER, data=data, event_number=number, previous=last)
        return (await self.store.append(request)).end_offset


def _call(port: int, method: str, path: str, content: bytes | None, headers: Mapping[str, str]) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, content, dict(headers))
        response = connection.getresponse()
        data = response.read()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, data)
    finally:
        connection.close()


@asynccontextmanager
async def running(limits: RestLimits | None = None, hosts: Sequence[str] | None = ()) -> AsyncIterator[Running]:
    memory = World(clock=RealClock(), rng=RealRng(), controller=ControllerSettings())
    async with AsyncExitStack() as stack:
        store, controller = await stack.enter_async_context(memory.serving())
        failures: dict[str, str] = {}
        online: dict[str, Sequence[str]] = {}

        async def readers_of(scope: str, group: str) -> Sequence[str] | None:
            return online.get(f"{scope}/{group}")

        server = await stack.enter_async_context(
            RestServer(
                controller,
                store,
                clock=memory.clock,
                port=0,
                hosts=hosts,
                reports=ProcessReports(
                    readers=GroupReaders(of=readers_of),
                    checks=Checks(
                        vital={"segmentstore": lambda: failures.get("segmentstore")},
                        functions={"appends": lambda: failures.get("appends")},
                    ),
                ),
                limits=limits,
            )
        )
        yield Running(store=store, controller=controller, server=server, failures=failures, online=online)


def play(scene: Callable[[Running], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a scene against a server of its own, within a minute, on the loop that servers run on."""

    async def whole() -> None:
        async with asyncio.timeout(60), running(**options) as run:
            await scene(run)

    uvloop.run(whole())


async def exchange(run: Running, sent: bytes, *, end: bool = False) -> bytes:
    """Send bytes as they are; gives all that comes back until the server closes, and nothing where it resets."""
    reader, writer = await asyncio.open_connection("127.0.0.1", run.server.port)
    try:
        writer.write(sent)
        if end:
            writer.write_eof()
        await writer.drain()
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *lines, "", ""]).encode()


# --- the description ---------------------------------------------------------------------------------------


def described_path(path: str) -> str | None:
    """The path of the description that a request's path matches: the one with the fewest parameters."""
    bare = path.partition("?")[0]
    bare = bare if bare == "/" else bare.rstrip("/")
    found = [known for known in DESCRIPTION["paths"] if re.fullmatch(_pattern(known), bare)]
    return min(found, key=lambda known: (known.count("{"), -len(known)), default=None)


def _pattern(known: str) -> str:
    parts = re.split(r"(\{\w+\})", known)
    return "".join(
        ".+" if part == "{subscriber}" else "[^/]+" if part.startswith("{") else re.escape(part) for part in parts
    )


def check_described(method: str, path: str, answer: Answer) -> None:
    """Fail unless the description allows this answer to this request."""
    known = described_path(path)
    if answer.status >= 400:
        check_schema(json.loads(answer.data), {"$ref": "#/components/schemas/Error"}, path) if answer.data else None
        return
    assert known is not None, f"{path} is not described"
    if method == "HEAD":
        return
    responses = DESCRIPTION["paths"][known][method.lower()]["responses"]
    assert str(answer.status) in responses, (method, path, answer.status)
    content = responses[str(answer.status)].get("content")
    if content is None:
        assert answer.data == b"", (method, path)
    elif "application/json" in content:
        assert answer.headers["content-type"] == "application/json"
        check_schema(json.loads(answer.data), content["application/json"]["schema"], f"{method} {path}")


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "null": lambda value: value is None,
}
_CHECKED = {
    *("$ref", "type", "properties", "required", "additionalProperties", "items", "enum", "minimum", "maxLength"),
    *("anyOf", "description", "format"),
}


def check_schema(value: Any, schema: Mapping[str, Any], where: str) -> None:
    """Fail unless the value fits the schema. Knows the words that the description uses, and no others."""
    assert set(schema) <= _CHECKED, set(schema) - _CHECKED
    if "$ref" in schema:
        check_schema(value, resolve(schema["$ref"]), where)
        return
    if "anyOf" in schema:
        assert any(_fits(value, item, where) for item in schema["anyOf"]), (where, value)
        return
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(_TYPES[kind](value) for kind in kinds), f"{where}: {value!r} is no {kinds}"
    assert "enum" not in schema or value in schema["enum"], f"{where}: {value!r} is not one of {schema['enum']}"
    if _TYPES["number"](value):
        assert value >= schema.get("minimum", value), f"{where}: {value!r} is too small"
    if isinstance(value, str):
        assert schema.get("format", "date-time") == "date-time", schema
        if "format" in schema:
            datetime.fromisoformat(value)
        assert len(value) <= schema.get("maxLength", len(value)), where
    if isinstance(value, list):
        for index, item in enumerate(value):
            check_schema(item, schema.get("items", {}), f"{where}[{index}]")
    if isinstance(value, dict):
        _check_object(value, schema, where)


def _fits(value: Any, schema: Mapping[str, Any], where: str) -> bool:
    try:
        check_schema(value, schema, where)
    except AssertionError:
        return False
    return True


def _check_object(value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> None:
    known, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
    missing = set(schema.get("required", ())) - set(value)
    assert not missing, f"{where}: {missing} missing in {value}"
    for name, item in value.items():
        if name in known:
            check_schema(item, known[name], f"{where}.{name}")
        else:
            assert rest is not False, f"{where}: {name} is not described"
            if isinstance(rest, dict):
                check_schema(item, rest, f"{where}.{name}")


def resolve(reference: str) -> Mapping[str, Any]:
    """The part of the description that a reference names."""
    found: Any = DESCRIPTION
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found
