"""Names of resources: paths such as ``/scope:S/stream:T``, and the part of them that a right covers."""

from __future__ import annotations

import re
from typing import Any

from penstock.model.errors import InvalidArgumentError
from penstock.model.identity import Action, Grant
from penstock.model.names import MARK_PREFIX, READER_GROUP_PREFIX, SYSTEM_SCOPE, TABLE_SUFFIX, StreamName

STORE = "/"
GROUP_TABLE_PREFIX = "_GROUP"
"""Prefix of the tables in which our own clients keep the state of reader groups."""

_PREFIX = "prn::"
_NAME = r"[A-Za-z0-9._-]*\*|[A-Za-z0-9._-]+"
_PATH = re.compile(rf"/scope:({_NAME})(/(\*|(stream|reader-group|key-value-table):({_NAME})))?\Z")
_PRAVEGA = {
    "READ": frozenset({Action.READ}),
    # In Pravega this one permission covers everything else that its own calls do.
    "READ_UPDATE": frozenset({Action.READ, Action.WRITE, Action.ADMIN, Action.RETAIN}),
}


def of_scope(scope: str) -> str:
    """The resource of a scope. The store's own scope is the store, and so is a text that is no name."""
    return STORE if scope == SYSTEM_SCOPE or not _is_part(scope) else f"/scope:{scope}"


def of_group(scope: str, group: str) -> str:
    return _inside(scope, "reader-group", group)


def of_table(scope: str, table: str) -> str:
    return _inside(scope, "key-value-table", table)


def _inside(scope: str, kind: str, name: str) -> str:
    """A resource of a scope. With a slash in it, a name could pass for a resource below one that was granted."""
    above = of_scope(scope)
    return STORE if above == STORE or not _is_part(name) else f"{above}/{kind}:{name}"


def _is_part(name: str) -> bool:
    return bool(name) and "/" not in name


def of_stream(stream: StreamName) -> tuple[str, ...]:
    """The resources of a stream or of the segments under that name: a right on one of them suffices.

    The streams and tables of a reader group are the group, and a stream of watermarks is the stream that it describes.
    The Rust client keeps a group in a table that is named like a key-value table, so either right suffices.
    """
    scope, name = stream.scope, stream.stream
    if scope == SYSTEM_SCOPE:
        return (STORE,)
    if name.startswith(MARK_PREFIX):
        name = name.removeprefix(MARK_PREFIX)
    for prefix in (READER_GROUP_PREFIX, GROUP_TABLE_PREFIX):
        if name.startswith(prefix):
            return (of_group(scope, name.removeprefix(prefix)),)
    if name.endswith(TABLE_SUFFIX):
        table = name.removesuffix(TABLE_SUFFIX)
        return (of_table(scope, table), of_group(scope, table))
    return (_inside(scope, "stream", name),)


def is_group(resource: str) -> bool:
    """Whether the resource is a reader group."""
    return "/reader-group:" in resource


def names_groups(granted: str) -> bool:
    """Whether a right names reader groups, by a name or the beginning of one, and nothing else."""
    return is_group(granted) and not granted.endswith(":*")


def of_segment(name: str) -> StreamName:
    """The stream to which a segment belongs by its name. A name of another form belongs to the store."""
    parts = name.split("/")
    return StreamName(parts[0], parts[1]) if len(parts) == 3 else StreamName(SYSTEM_SCOPE, name)


def of_target(target: Any) -> tuple[str, ...]:
    """The resources of a stream, a scope, or (None) the store."""
    if target is None:
        return (STORE,)
    return of_stream(target) if isinstance(target, StreamName) else (of_scope(target),)


def covers(granted: str, resource: str) -> bool:
    """Whether a right on ``granted`` is a right on ``resource``: it is the same or lies below, part by part."""
    have, want = _parts(granted), _parts(resource)
    return len(have) <= len(want) and all(map(_matches, have, want))


def touches(granted: str, resource: str) -> bool:
    """Whether a right on ``granted`` is a right on ``resource`` or on something below it."""
    return all(_matches(have, want) for have, want in zip(_parts(granted), _parts(resource), strict=False))


def _parts(path: str) -> list[str]:
    return path[1:].split("/") if path != STORE else []


def _matches(pattern: str, part: str) -> bool:
    return pattern == part or (pattern.endswith("*") and part.startswith(pattern[:-1]))


def parse_grant(text: str) -> Grant:
    """A right from ``RESOURCE=ACTION,ACTION``, or from Pravega's ``prn::RESOURCE,READ`` or ``READ_UPDATE``.

    The action ``*`` is all of them. The resource ``*`` is the store. A name may end with ``*``, for all names that begin
    like that. Raises InvalidArgumentError.
    """
    if text.startswith((_PREFIX, "*,")) or "=" not in text:
        resource, _, permission = text.rpartition(",")
        actions = _PRAVEGA.get(permission.strip())
        if actions is None or not resource:
            raise InvalidArgumentError(
                "not a right; write RESOURCE=ACTIONS, such as /scope:S/stream:T=read,write", right=text[:200]
            )
        return Grant(_resource(resource), actions)
    resource, _, named = text.partition("=")
    return Grant(_resource(resource), actions_of(named))


def actions_of(text: str) -> frozenset[Action]:
    """Actions from their names, separated by commas. ``*``: all. Raises InvalidArgumentError."""
    names = [name.strip().lower() for name in text.split(",")]
    if names == ["*"]:
        return frozenset(Action)
    unknown = [name for name in names if name not in set(Action)]
    if unknown:
        raise InvalidArgumentError("no such action", action=unknown[0][:80], known=", ".join(Action))
    return frozenset(map(Action, names))


def grant_text(grant: Grant) -> str:
    """The right as text that ``parse_grant`` reads."""
    named = "*" if grant.actions == frozenset(Action) else ",".join(one for one in Action if one in grant.actions)
    return f"{grant.resource}={named}"


def _resource(text: str) -> str:
    """A checked path. Raises InvalidArgumentError."""
    path = text.strip().removeprefix(_PREFIX)
    if path in ("*", "/*", STORE):
        return STORE
    if not _PATH.match(path) or path == f"/scope:{SYSTEM_SCOPE}":
        raise InvalidArgumentError(
            "no such resource: write /, /scope:S, /scope:S/stream:T, /scope:S/reader-group:G "
            "or /scope:S/key-value-table:K",
            resource=path[:200],
        )
    return path
