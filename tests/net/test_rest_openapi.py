"""The description of the HTTP port says what the port does: every route is in it, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rest_support import DESCRIPTION, Running, check_schema, play, resolve
from starlette.routing import Route

_METHODS = ("get", "put", "post", "delete")


def references(value: Any) -> list[str]:
    """All references anywhere in the value."""
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [found for item in value.values() for found in references(item)]
    if isinstance(value, list):
        return [found for item in value for found in references(item)]
    return []


def test_every_route_is_described_and_every_description_has_its_route() -> None:
    async def scene(run: Running) -> None:
        served = {
            (re.sub(r":path\}", "}", route.path), method)
            for route in run.server.routes
            if isinstance(route, Route) and not route.path.startswith(("/admin/", "/lookup/"))
            for method in (route.methods or set()) - {"HEAD"}
        }
        described = {
            (path, method.upper())
            for path, item in DESCRIPTION["paths"].items()
            for method in item
            if method in _METHODS
        }
        assert served == described
        assert len(served) > 40

    play(scene)


def test_the_description_is_served_as_it_is() -> None:
    async def scene(run: Running) -> None:
        assert (await run.get("/openapi.json")).json == DESCRIPTION

    play(scene)


def test_references_lead_somewhere_and_every_schema_is_used() -> None:
    found = references(DESCRIPTION)
    for reference in found:
        assert resolve(reference)
    schemas = {f"#/components/schemas/{name}" for name in DESCRIPTION["components"]["schemas"]}
    assert schemas <= set(found), schemas - set(found)


def test_parameters_of_paths_are_declared() -> None:
    for path, item in DESCRIPTION["paths"].items():
        named = {parameter["name"] for parameter in item.get("parameters", []) if parameter["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path)), path


def test_every_call_has_a_name_of_its_own_a_summary_and_an_answer_for_errors() -> None:
    calls = [item[method] for item in DESCRIPTION["paths"].values() for method in _METHODS if method in item]
    names = [call["operationId"] for call in calls]
    assert len(set(names)) == len(names)
    tags = {tag["name"] for tag in DESCRIPTION["tags"]}
    for call in calls:
        assert call["summary"]
        assert set(call["tags"]) <= tags
        assert "default" in call["responses"] or call["tags"] == ["Documentation"] or call["operationId"] == "ping"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, True),
        ({"type": "integer", "minimum": 0}, -1),
        ({"type": ["string", "null"]}, 5),
        ({"enum": ["a"]}, "b"),
        ({"type": "object", "required": ["a"]}, {}),
        ({"type": "object", "properties": {}, "additionalProperties": False}, {"a": 1}),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"a": 1}),
        ({"type": "array", "items": {"type": "string"}}, [1]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1),
        ({"type": "string", "maxLength": 1}, "ab"),
    ],
)
def test_the_checker_that_holds_answers_against_the_description_can_fail(schema: dict[str, Any], value: Any) -> None:
    with pytest.raises(AssertionError):
        check_schema(value, schema, "value")
