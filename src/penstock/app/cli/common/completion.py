"""Names of scopes, streams, groups and tables for the shell's completion: from the store that the command line names.

A shell waits for the answer at each press of the key. So nothing is printed and nothing fails here: without a server, or
after four seconds, there are no names. A directory (``--data``) is not opened for it: that would lock it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from penstock.app.cli.common.address import default_controller
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.store import AsyncStore

NAMES_MAX = 200
"""More names than a terminal shows; another letter selects among them."""
_ANSWER_S = 4.0
_DIAL_S = 2.0

Names: TypeAlias = Callable[["AsyncStore", str, str], Awaitable[Sequence[str]]]
"""Gives the names of one kind in a scope that begin with a prefix. Arguments: the store, the scope, the prefix."""
Completion: TypeAlias = Callable[[typer.Context, str], list[str]]


def scope_names(context: typer.Context, incomplete: str) -> list[str]:
    """The scopes whose names begin so."""

    async def find(store: AsyncStore) -> Sequence[str]:
        return await _scopes(store, incomplete)

    return _ask(context, find)


def names_in_scope(names: Names) -> Completion:
    """The completion of ``SCOPE/NAME``. Before the slash it gives scopes, and all names if one scope is left."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        async def find(store: AsyncStore) -> Sequence[str]:
            scope, slash, prefix = incomplete.partition("/")
            if not slash:
                scopes = await _scopes(store, scope)
                if len(scopes) != 1:
                    return [f"{name}/" for name in scopes]
                scope = scopes[0]
            return [f"{scope}/{name}" for name in await names(store, scope, prefix)]

        return _ask(context, find)

    return complete


async def _scopes(store: AsyncStore, prefix: str) -> list[str]:
    return [name for name in await store.scopes() if name.startswith(prefix) and not name.startswith("_")]


async def stream_names_in(store: AsyncStore, scope: str, prefix: str) -> list[str]:
    """Streams of the scope whose names begin so; about ``NAMES_MAX`` where there are many."""
    found: list[str] = []
    # The first name that can begin so: names have only characters of ASCII, and "~" is after all of them.
    after = prefix and prefix[:-1] + chr(ord(prefix[-1]) - 1) + "~"
    while len(found) < NAMES_MAX and (page := await store.controller.streams.list(scope, tag=None, after=after)):
        found += [name for name in page if name.startswith(prefix) and not name.startswith("_")]
        after = page[-1]
        if after > prefix and not after.startswith(prefix):
            break
    return found


async def _groups(store: AsyncStore, scope: str, prefix: str) -> list[str]:
    return [name for name in await store.controller.groups.list(scope) if name.startswith(prefix)]


async def _tables(store: AsyncStore, scope: str, prefix: str) -> list[str]:
    return [name for name in await store.tables(scope) if name.startswith(prefix)]


stream_names = names_in_scope(stream_names_in)
group_names = names_in_scope(_groups)
table_names = names_in_scope(_tables)


def _ask(context: typer.Context, find: Callable[[AsyncStore], Awaitable[Sequence[str]]]) -> list[str]:
    given: dict[str, Any] = context.params
    if given.get("data") is not None:
        return []
    address = given.get("controller") or default_controller()
    import asyncio  # here, as all that commands need only when they run: the help is shown without it

    # No name is the answer to every failure: a text on the terminal would destroy the line that is being typed.
    with suppress(PenstockError, OSError, TimeoutError, ModuleNotFoundError):
        return asyncio.run(_found(address, find))
    return []


async def _found(address: str, find: Callable[[AsyncStore], Awaitable[Sequence[str]]]) -> list[str]:
    import asyncio

    import penstock
    from penstock.net.dial.checking import check_listens

    async with asyncio.timeout(_ANSWER_S):
        await check_listens(address, wait_s=0)
        async with penstock.connect_async(address, dial_s=_DIAL_S) as store:
            return sorted(await find(store))[:NAMES_MAX]
