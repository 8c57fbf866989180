"""The OpenAPI description of the HTTP port.

Pravega's calls are described manually in ``openapi_v1.json``; ours are generated from their declarations in
``own_calls``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from penstock.model.retention import PolicyDocument
from penstock.net.http.http_errors import JSON
from penstock.net.http.own_calls import OWN_CALLS
from penstock.net.http.rest_calls import Kind, Parameter, RestCall
from penstock.net.http.schemas import Schema, Schemas, closed_object

_IN_PATH: Mapping[str, str] = {
    "scope": "Name of the scope",
    "stream": "Name of the stream",
    "transaction": "The id of a transaction",
    "subscriber": "`scope/group`, or `group` of the stream's scope; a slash may stand as it is",
    "id": "Its id",
}
_KINDS: Mapping[Kind, Schema] = {
    Kind.TEXT: {"type": "string"},
    Kind.WHOLE: {"type": "integer", "minimum": 0},
    Kind.FLAG: {"type": "boolean"},
    Kind.CUT: {"type": ["string", "object"]},
    Kind.TEXTS: {"type": "array", "items": {"type": "string"}},
}


def describe(calls: Sequence[RestCall] = OWN_CALLS) -> dict[str, Any]:
    """The description of the whole port, as values for ``json``."""
    text = resources.files("penstock.net").joinpath("openapi_v1.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    schemas = Schemas()
    for call in calls:
        path = call.path.replace(":path}", "}")
        item = found["paths"].setdefault(
            path, {"parameters": [_in_path(name) for name in re.findall(r"{(\w+)}", path)]}
        )
        item[call.verb.lower()] = _operation(call, schemas)
    found["components"]["schemas"] |= schemas.named
    return found


def _in_path(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "description": _IN_PATH[name], "schema": {"type": "string"}}


def _operation(call: RestCall, schemas: Schemas) -> Schema:
    errors = ("400", "404") if call.verb == "GET" else ("400", "404", "409")
    operation: Schema = {"operationId": call.name, "summary": call.summary, "tags": [call.tag]}
    if call.query:
        operation["parameters"] = [_in_query(item) for item in call.query]
    if call.takes_policy:
        operation["requestBody"] = {"required": True, **_content(schemas.of(PolicyDocument))}
    elif call.body is not None:
        operation["requestBody"] = {"required": True, **_content(_body(call.body))}
    return operation | {
        "responses": {
            **_answer(call, schemas),
            **{status: {"$ref": f"#/components/responses/{status}"} for status in errors},
            "default": {"$ref": "#/components/responses/error"},
        }
    }


def _answer(call: RestCall, schemas: Schemas) -> Schema:
    if call.answer is type(None):
        return {"204": {"description": "Done"}}
    schema = schemas.of(call.answer)
    if call.under:
        schema = closed_object({call.under: schema}, [call.under])
    return {str(call.status): {"description": "The answer", **_content(schema)}}


def _in_query(item: Parameter) -> Schema:
    schema = _KINDS[Kind.TEXT if item.kind is Kind.CUT else item.kind]
    return {"name": item.name, "in": "query", "required": item.needed, "description": item.about, "schema": schema}


def _body(fields: Sequence[Parameter]) -> Schema:
    properties = {item.name: {**_KINDS[item.kind], "description": item.about} for item in fields}
    return closed_object(properties, [item.name for item in fields if item.needed])


def _content(schema: Schema) -> Schema:
    return {"content": {JSON: {"schema": schema}}}
