"""A schema registry over HTTP in this process, with faults, and the rule by which it refuses schemas."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from fastavro import parse_schema
from fastavro.schema import SchemaParseException

from penstock.client.serializing.memory import MemorySchemaRegistry
from penstock.model.errors import IncompatibleSchemaError, SchemaNotFoundError
from penstock.ports.schemas import RegisteredSchema, Schema, SchemaKind, SchemaReference

_WIDER = {("int", "long"), ("long", "double"), ("int", "double")}


def reads(new: Schema, old: Schema) -> bool:
    """A rule for records of Avro: each field has the type of before, or a wider one, or is new and has a default."""
    if new.kind is not SchemaKind.AVRO or old.kind is not SchemaKind.AVRO:
        return new.kind is old.kind
    before = {field["name"]: field["type"] for field in json.loads(old.text)["fields"]}
    return all(
        field["type"] == before[field["name"]] or (before[field["name"]], field["type"]) in _WIDER
        if field["name"] in before
        else "default" in field
        for field in json.loads(new.text)["fields"]
    )


class Stub:
    """What the server answers. ``faults``: instead of the next answers, a status, or bytes as an answer with status 200,
    or None to close the connection. ``asked``: the requests, in order."""

    def __init__(self) -> None:
        self.registry = MemorySchemaRegistry(reads)
        self.faults: list[int | bytes | None] = []
        self.asked: list[str] = []
        self.authorization: list[str | None] = []
        self.required: str | None = None
        self.url = ""

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        try:
            match method, parts:
                case "GET", ["schemas", "ids", number]:
                    return 200, _schema(self.registry.schema(int(number)))
                case "POST", ["subjects", subject, "versions"]:
                    return 200, {"id": self.registry.register(subject, _given(body))}
                case "POST", ["subjects", subject]:
                    return 200, _version(self.registry.find(subject, _given(body)))
                case "GET", ["subjects", subject, "versions", "latest"]:
                    return 200, _version(self.registry.latest(subject))
        except SchemaNotFoundError as error:
            return 404, {"error_code": 40403, "message": str(error)}
        except IncompatibleSchemaError as error:
            return 409, {"error_code": 409, "message": str(error)}
        except (ValueError, SchemaParseException) as error:
            return 422, {"error_code": 42201, "message": str(error)}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


def _given(body: Any) -> Schema:
    kind = SchemaKind(body.get("schemaType", "AVRO"))
    if kind is SchemaKind.AVRO:
        parse_schema(json.loads(body["schema"]))
    found = tuple(SchemaReference(**item) for item in body.get("references", ()))
    return Schema(kind=kind, text=body["schema"], references=found)


def _schema(schema: Schema) -> dict[str, Any]:
    plain: dict[str, Any] = {"schema": schema.text}
    if schema.kind is not SchemaKind.AVRO:
        plain["schemaType"] = schema.kind.value
    if schema.references:
        plain["references"] = [
            {"name": item.name, "subject": item.subject, "version": item.version} for item in schema.references
        ]
    return plain


def _version(found: RegisteredSchema) -> dict[str, Any]:
    return {"id": found.id, "subject": found.subject, "version": found.version, **_schema(found.schema)}


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@contextmanager
def serving_registry() -> Iterator[Stub]:
    """Serve on a free port of this machine."""
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._handle("GET")

        def do_POST(self) -> None:
            self._handle("POST")

        def _handle(self, method: str) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            stub.asked.append(f"{method} {self.path}")
            stub.authorization.append(self.headers.get("Authorization"))
            fault = stub.faults.pop(0) if stub.faults else 0
            if fault is None:
                self.close_connection = True
                return
            if isinstance(fault, bytes):
                self._send(200, fault)
            elif fault:
                self._send(fault, b'{"error_code": 1, "message": "planted"}')
            elif stub.required is not None and stub.authorization[-1] != stub.required:
                self._send(401, b'{"error_code": 401, "message": "Unauthorized"}')
            else:
                status, answer = stub.answer(method, self.path, body)
                self._send(status, json.dumps(answer).encode())

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """The tests look at ``asked``."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
