"""Whatever is sent to the HTTP port is answered in its own words, and never by an error of the server."""

from __future__ import annotations

import random
import re
from typing import Any
from urllib.parse import quote

import pytest
from rest_support import DESCRIPTION, Running, play, resolve

NAMES = [
    "s",
    "events",
    "none",
    "_system",
    "_MARKevents",
    "a b",
    "..",
    ".",
    "\x00",
    "é",
    "%",
    "x" * 300,
    "x" * 5000,
    "#",
    "?",
]
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    1.5,
    1e300,
    1 << 62,
    1 << 64,
    1 << 80,
    "",
    "x",
    "s/events",
    "\x00",
    "é" * 99,
    [],
    {},
    [None],
]
QUERIES = [
    "",
    "?from=0&to=5",
    "?at_ms=5",
    "?position=tail",
    "?owner=x",
    "?dry_run=true",
    "?filter_type=tag&filter_value=%00",
    "?x=%zz&",
]


def sample(schema: dict[str, Any], chance: random.Random, depth: int = 0) -> Any:
    """A value that nearly fits the schema: most fields right, some odd, some missing, some too many."""
    if "$ref" in schema:
        return sample(dict(resolve(schema["$ref"])), chance, depth)
    if chance.random() < 0.15 or depth > 4:
        return chance.choice(ODD)
    if "enum" in schema:
        return chance.choice(schema["enum"])
    kind = schema.get("type", "string")
    kind = chance.choice(kind) if isinstance(kind, list) else kind
    if kind == "object":
        fields = {
            name: sample(item, chance, depth + 1)
            for name, item in schema.get("properties", {}).items()
            if chance.random() < 0.7
        }
        return (
            fields | ({"surplus": 1} if chance.random() < 0.1 else {}) | ({"0#0": 0} if chance.random() < 0.1 else {})
        )
    if kind == "array":
        return [sample(schema.get("items", {}), chance, depth + 1) for _ in range(chance.randrange(3))]
    if kind in ("integer", "number"):
        return chance.choice([0, 1, 5, 1000, 1 << 40])
    if kind == "boolean":
        return chance.random() < 0.5
    return chance.choice([*NAMES, "head", "tail", "s/events", "s/g"])


def named(parameter: str, chance: random.Random) -> str:
    """Mostly what there is."""
    there = {"scope": "s", "stream": "events", "subscriber": "s/g", "group": "g"}.get(parameter, "x")
    return there if chance.random() < 0.8 else chance.choice(NAMES)


@pytest.mark.parametrize("seed", range(3))
def test_no_request_makes_the_server_fail(seed: int) -> None:
    chance = random.Random(seed)
    calls = [
        (path, method, call)
        for path, item in DESCRIPTION["paths"].items()
        for method, call in item.items()
        if method != "parameters"
    ]

    async def scene(run: Running) -> None:
        met: set[int] = set()
        for _ in range(250):
            if not await run.controller.scopes.exists("s"):
                await run.controller.scopes.create("s")
                await run.expect(201, "POST", "/v1/scopes/s/streams", {"streamName": "events"})
            path, method, call = chance.choice(calls)
            filled = re.sub(r"\{(\w+)\}", lambda found: quote(named(found[1], chance), safe=""), path)
            body = None
            if "requestBody" in call and chance.random() < 0.95:
                body = sample(call["requestBody"]["content"]["application/json"]["schema"], chance)
            query = chance.choice(QUERIES) if method != "put" else ""
            answer = await run.call(method.upper(), filled + query, body)
            met.add(answer.status)
            assert answer.status < 500, (method, filled[:200] + query, body, answer.data)
        assert {200, 400, 404} <= met

    play(scene)
