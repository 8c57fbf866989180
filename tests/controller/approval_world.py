"""Callers with identities, and what they request."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.controller.controller import Controller
from penstock.model.callers import Caller, calling
from penstock.model.errors import ApprovalRequiredError
from penstock.model.identity import Action, Grant, Identity

DAY_MS = 86_400_000

Call = Callable[[Controller], Awaitable[object]]


def at_once(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The test without an event loop of its own."""

    @functools.wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))  # type: ignore[arg-type]

    return run


@contextmanager
def by(name: str, *actions: Action) -> Iterator[None]:
    """The caller is an identity with all rights, or with these on the store."""
    grants = (Grant("/", frozenset(actions or Action)),)
    with calling(Caller(why="a reason", identity=Identity(name=name, proof="password", grants=grants))):
        yield


async def requested(controller: Controller, call: Call, who: str = "al") -> str:
    with by(who), pytest.raises(ApprovalRequiredError) as caught:
        await call(controller)
    return str(caught.value.fields["request"])
