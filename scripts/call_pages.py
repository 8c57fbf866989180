"""The parts of the reference that follow from declarations: our calls over gRPC and HTTP, and the types of answers.

Pages include them by name (``--8<--``), so a new call or type needs no line in a page.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from penstock import answers
from penstock.net.http.own_calls import OWN_CALLS
from penstock.net.http.rest_calls import SCOPE, STREAM, RestCall
from penstock.net.native.calls import control_calls, segment_calls


def included() -> Mapping[str, str]:
    """The text of each part, by the name of its file in build/docs."""
    return {"answers.md": answer_types(), "native-calls.md": native_calls(), "rest-calls.md": rest_calls()}


def answer_types() -> str:
    """One directive of mkdocstrings for each type of ``penstock.answers``, sorted by name."""
    names = sorted(name for name, value in vars(answers).items() if inspect.isclass(value))
    return "\n".join(f"::: penstock.answers.{name}\n" for name in names)


def native_calls() -> str:
    """A row for each call over gRPC, with its parameters."""
    calls = [call for calls in control_calls().values() for call in calls.values()]
    rows = [
        (f"`{call.name}`", ", ".join(f"`{name}`" for name in list(inspect.signature(call.declared).parameters)[1:]))
        for call in [*calls, *segment_calls().values()]
    ]
    return _table(("call", "parameters"), rows)


def rest_calls() -> str:
    """A row for each of our own calls over HTTP: what it takes and what it does."""
    rows = [(f"`{_path(call)}`", _body(call), call.summary.replace("|", r"\|")) for call in OWN_CALLS]
    return _table(("call", "body", "what it does"), rows)


def _path(call: RestCall) -> str:
    path = call.path.replace(":path}", "}").replace(STREAM, "S").replace(SCOPE, "/v1/scopes/{scope}")
    query = "&".join(f"{item.name}=" for item in call.query)
    return f"{call.verb} {path}{'?' * bool(query)}{query}"


def _body(call: RestCall) -> str:
    if call.takes_policy:
        return "a policy document"
    return ", ".join(f"`{item.name}`" for item in call.body or ())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
