"""``penstock retention audit``: every decision that removed data, or would have."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.common.options import FOLLOW, KIND, SINCE
from penstock.app.cli.common.output import print_json
from penstock.app.cli.common.target import ControllerOption, DataOption, JsonOption, open_target
from penstock.app.cli.common.words import document_words, fields_words, moment, parse_moment
from penstock.codec.audit import AuditKind, decode_entry
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    StreamNotFoundError,
    VersionTooNewError,
)
from penstock.model.names import SYSTEM_SCOPE, StreamName
from penstock.storage.machine.clock import RealClock

if TYPE_CHECKING:
    from penstock.client.blocking.readers import Reader
    from penstock.client.blocking.stores import Store

STREAM = f"{SYSTEM_SCOPE}/audit"
_HEAD = ("v", "at_ms", "kind", "target", "n", "previous", "log", "signature")
"""Fields that are shown in front, or that only verifiers read."""


def audit(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="SCOPE/STREAM|SCOPE",
            show_default=False,
            help="Only entries about this scope or stream.  [default: all]",
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help=KIND),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help=f"{SINCE} Or 2h ago.", show_default=False)
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", help="Only the last N entries.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help=FOLLOW)] = False,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print what was decided about data: when, which rule, cuts before and after, events, bytes, who lost data.

    It is the stream _system/audit, which any client can read.

    \b
    penstock retention audit demo/clicks --since 2h
    penstock retention audit demo --kind truncate --kind evict --last 20
    """
    if target is not None and "/" in target:
        StreamName.parse(target)
    known = {item.value for item in AuditKind}
    for name in kind or ():
        if name not in known:
            raise InvalidArgumentError("no such kind of entry", kind=repr(name[:60]), known=", ".join(sorted(known)))
    if last is not None and (last < 1 or follow):
        raise InvalidArgumentError("--last must be at least 1, and cannot be combined with --follow", last=last)
    from_ms = 0 if since is None else parse_moment(since, now_ms=RealClock().now_ms(), ago=True)
    with open_target(controller, data) as store:
        if target is not None and "/" in target:
            _check_known(store, target)
        _print_entries(
            store,
            lambda entry: _concerns(entry, target) and _chosen(entry, kind, from_ms),
            last=last,
            follow=follow,
            json=json,
        )


def _check_known(store: Store, stream: str) -> None:
    """Raises StreamNotFoundError where no such stream exists, and no audit entry names one that was."""
    with suppress(NotFoundError):
        if store.stream(stream).exists():
            return
        with _reader(store, follow=False) as reader:
            if any(entry.get("target") == stream for entry in _entries(event.data for event in reader)):
                return
    raise StreamNotFoundError("no such stream exists, and no audit entry names one", stream=stream)


def _print_entries(
    store: Store, wanted: Callable[[Mapping[str, Any]], bool], *, last: int | None, follow: bool, json: bool
) -> None:
    is_empty = True
    # Without the stream, no decision was ever made.
    with suppress(NotFoundError), _reader(store, follow=follow) as reader:
        entries = (entry for entry in _entries(event.data for event in reader) if wanted(entry))
        for entry in entries if last is None else deque(entries, maxlen=last):
            _print(entry, as_json=json, flush=follow)
            is_empty = False
    if is_empty and not json:
        print("no entries")


def _reader(store: Store, *, follow: bool) -> Reader:
    return store.stream(STREAM).reader(start="head", until_tail=not follow, on_truncated="skip")


def _entries(events: Iterator[bytes]) -> Iterator[Mapping[str, Any]]:
    for event in events:
        try:
            yield decode_entry(event)
        except (CorruptDataError, VersionTooNewError) as error:
            # One entry that cannot be read must not hide the others.
            yield {"at_ms": 0, "kind": "unreadable", "target": "", "error": str(error)}


def _concerns(entry: Mapping[str, Any], target: str | None) -> bool:
    """Whether the entry is about the target, or about a level above it."""
    about = str(entry.get("target", ""))
    if target is None or about in ("", target):
        return True
    scope = StreamName.parse(target).scope if "/" in target else None
    return about == scope if scope is not None else about.startswith(f"{target}/")


def _chosen(entry: Mapping[str, Any], kinds: list[str] | None, from_ms: int) -> bool:
    return (not kinds or entry.get("kind") in kinds) and int(entry.get("at_ms") or 0) >= from_ms


def _print(entry: Mapping[str, Any], *, as_json: bool, flush: bool) -> None:
    if as_json:
        print_json(entry)
        return
    fields = {name: value for name, value in entry.items() if name not in _HEAD and value not in (None, [])}
    if entry.get("kind") == AuditKind.POLICY.value:
        # Here "before" and "after" are documents, not cuts.
        fields = {
            name: document_words(value) if name in ("before", "after") and isinstance(value, Mapping) else value
            for name, value in fields.items()
        }
    at = moment(int(entry.get("at_ms") or 0))
    about = entry.get("target") or "server"
    print(f"{at}  {entry.get('kind', ''):<8}  {about}  {fields_words(fields)}".rstrip(), flush=flush)
