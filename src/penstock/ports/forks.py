"""Which process a handle belongs to. A forked child does nothing with the handles of its parent.

A child has copies of its parent's sockets, files and objects, but not its threads. The parent is damaged if the child sends
a byte on such a socket, writes such a file or closes such an object in the regular way. A writer of the parent could count
the child's append as its own, and lose an event. So in the child every handle refuses its work with ForkedError. Its sockets
are replaced by unconnected ones, and nothing of it is ever closed or collected.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import select
import selectors
import socket
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Protocol, Self
from weakref import WeakSet

from penstock.model.errors import ForkedError

log = logging.getLogger(__name__)


class Handle(Protocol):
    """An object that belongs to the process that created it. This module holds only a weak reference."""

    def abandon_in_child(self) -> None:
        """Refuse all work from now on. Called once, in the child, in its only thread. Takes no lock, raises nothing."""
        ...


_handles: WeakSet[Any] = WeakSet()
_inherited: list[Any] = []
# Never freed, even when the interpreter ends. Otherwise a child would close its parent's connections at that point.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_inherited))


class _Process:
    """The running process. ``now`` is a different object after each fork."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = object()


_process = _Process()


def current() -> object:
    """A token of this process. A forked child has another one."""
    return _process.now


def register(handle: Handle) -> None:
    """Call ``abandon_in_child`` of the handle in each forked child."""
    _handles.add(handle)


def keep(thing: object) -> None:
    """Keep an inherited object alive forever, because its finalizers must run only in the parent."""
    _inherited.append(thing)


def check(owner: object) -> None:
    """Raise ForkedError unless ``owner`` is the token of this process."""
    if owner is not _process.now:
        raise refusal()


def refusal() -> ForkedError:
    """The error that a handle of the parent raises in a forked child."""
    return ForkedError(
        "object was opened before a fork and belongs to the parent process: open the store again after the fork",
        pid=os.getpid(),
        parent_pid=os.getppid(),
    )


def disconnect(descriptor: int) -> None:
    """Replace the descriptor of an inherited socket by an unconnected one. The parent's connection stays open."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as nowhere:
        os.dup2(nowhere.fileno(), descriptor, inheritable=False)


class _InheritedLoop:
    """An event loop whose epoll set a forked child shares with its parent.

    A child that closes the loop, as the end of ``asyncio.run`` does, would remove descriptors from its parent's set.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def abandon_in_child(self) -> None:
        selector = getattr(self._loop, "_selector", None)
        if isinstance(selector, selectors.EpollSelector):
            descriptor = selector.fileno()
        elif hasattr(self._loop, "_get_backend_id"):  # uvloop
            descriptor = self._loop._get_backend_id()
        else:
            return
        if descriptor >= 0:
            with suppress(OSError), select.epoll() as nothing:
                os.dup2(nothing.fileno(), descriptor, inheritable=False)


class OwnedExitStack(AsyncExitStack):
    """An exit stack that runs its cleanup only in the process that opened it, not in a forked child."""

    def __init__(self) -> None:
        super().__init__()
        self._owner = current()
        self._loop: _InheritedLoop | None = None

    async def __aenter__(self) -> Self:
        self._loop = _InheritedLoop(asyncio.get_running_loop())
        register(self._loop)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._owner is not current():
            keep(self.pop_all())
            return False
        return bool(await super().__aexit__(kind, error, trace))


def _in_child() -> None:
    _process.now = object()
    handles = list(_handles)
    _inherited.extend(handles)
    _handles.clear()
    for handle in handles:
        try:
            handle.abandon_in_child()
        except Exception:  # The other handles must be called too.
            log.exception("handle did not accept the fork", extra={"handle": type(handle).__name__})


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
