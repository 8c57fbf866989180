"""What commands of the wire protocol need of their token, and what a token allows an identity.

A token is for all segments under one stream's name. Source: docs/design/0051-identity.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.codec.wire import commands as c
from penstock.codec.wire import table_commands as t
from penstock.core.access.resources import is_group, names_groups, of_segment, of_stream
from penstock.core.access.rights import actions_on
from penstock.model.identity import Action, Identity
from penstock.model.names import RECORD_STREAMS, SYSTEM_SCOPE, TABLE_SUFFIX, StreamName

ACCESS = frozenset({Action.READ, Action.WRITE, Action.ADMIN})
"""The actions that a token can allow."""
_READ, _WRITE, _ADMIN = frozenset({Action.READ}), frozenset({Action.WRITE}), frozenset({Action.ADMIN})

COMMANDS: Mapping[type[Any], frozenset[Action]] = {
    **dict.fromkeys((c.GetStreamSegmentInfo, t.GetTableSegmentInfo), ACCESS),
    **dict.fromkeys((c.ReadSegment, c.LocateOffset, c.GetSegmentAttribute), _READ),
    **dict.fromkeys((t.ReadTable, t.ReadTableKeys, t.ReadTableEntries, t.ReadTableEntriesDelta), _READ),
    **dict.fromkeys((c.SetupAppend, c.UpdateSegmentAttribute, c.CreateTransientSegment, c.MergeSegments), _WRITE),
    **dict.fromkeys((t.UpdateTableEntries, t.RemoveTableKeys), _WRITE),
    **dict.fromkeys(
        (c.CreateSegment, c.SealSegment, c.DeleteSegment, c.UpdateSegmentPolicy, c.TruncateSegment), _ADMIN
    ),
    **dict.fromkeys((t.CreateTableSegment, t.DeleteTableSegment, c.MergeSegmentsBatch), _ADMIN),
    **dict.fromkeys((c.FlushToStorage, c.ListStorageChunks), _ADMIN),
}
"""The commands with a token, and the actions of which the token must allow one."""

WITHOUT_TOKEN = frozenset(
    {c.Hello, c.KeepAlive, c.ConditionalAppend, c.ConditionalBlockEnd, c.AppendBlock, c.AppendBlockEnd}
)
"""Greetings, and appends, which belong to a writer whose setup had a token. All other commands are refused."""

_FIELDS = ("segment", "parent", "target", "source")


def streams_of(command: Any) -> frozenset[StreamName]:
    """The streams of all segments that the command names. One that names none concerns the store."""
    names = [getattr(command, field) for field in _FIELDS if hasattr(command, field)]
    names += getattr(command, "sources", ())
    return frozenset(map(of_segment, names)) or frozenset({StreamName(SYSTEM_SCOPE, "")})


def permits(command: Any, on: Callable[[StreamName], frozenset[Action]]) -> bool:
    """Whether a token allows the command. ``on`` returns the actions that it allows under the name of a stream."""
    wanted = COMMANDS.get(type(command), frozenset())
    return all(wanted & on(stream) for stream in streams_of(command))


def delegable(identity: Identity, stream: StreamName) -> frozenset[Action]:
    """What the identity may do with segments under the name of the stream. Empty: it gets no token.

    Readers of a group write its state, and delete it. Only the store writes its own streams. A table that is named like a
    key-value table is a group's only for a right that names groups: else every reader of a scope could delete its tables.
    """
    if stream in RECORD_STREAMS:
        return _READ if actions_on(identity.grants, ["/"]) & {Action.AUDIT} else frozenset()
    if stream.scope == SYSTEM_SCOPE:
        return _READ if actions_on(identity.grants, ["/"]) & {Action.ADMIN} else frozenset()
    found: frozenset[Action] = frozenset()
    for resource in of_stream(stream):
        grants = identity.grants
        if is_group(resource) and stream.stream.endswith(TABLE_SUFFIX):
            grants = tuple(grant for grant in grants if names_groups(grant.resource))
        held = actions_on(grants, [resource])
        if is_group(resource):
            found |= ACCESS if Action.READ in held else frozenset()
        else:
            found |= held & ACCESS
    return found
