"""The blocking client, derived from the asynchronous one: same names, parameters and documentation, without ``await``.

``head = blocking(AsyncStream.head)`` in a class body is the method that runs ``AsyncStream.head`` in the loop's thread and
waits for its result. Type checkers, ``help`` and ``inspect.signature`` see the parameters of the original.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from penstock.client.blocking.loop_thread import LoopThread

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
B = TypeVar("B")


class Blocking(Generic[A_co]):
    """An object of the asynchronous client, for the thread that waits for its results."""

    def __init__(self, thread: LoopThread, inner: A_co) -> None:
        self._thread = thread
        self._inner = inner

    def __init_subclass__(cls) -> None:
        for name, method in vars(cls).items():
            if hasattr(method, "__wrapped__"):
                method.__module__, method.__qualname__ = cls.__module__, f"{cls.__qualname__}.{name}"


def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Blocking[A], P], R]:
    """The asynchronous ``method``, which returns once it is done. Interrupted: the method is cancelled."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **options: P.kwargs) -> R:
        return self._thread.call(method(self._inner, *args, **options))

    return call


def blocking_as(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], kind: Callable[[LoopThread, R], B]
) -> Callable[Concatenate[Blocking[A], P], B]:
    """As ``blocking``, for a method that returns an asynchronous object: its blocking counterpart, of class ``kind``."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **options: P.kwargs) -> B:
        return kind(self._thread, self._thread.call(method(self._inner, *args, **options)))

    return _returning(call, kind)


def counterpart_of(
    method: Callable[Concatenate[A, P], R], kind: Callable[[LoopThread, R], B]
) -> Callable[Concatenate[Blocking[A], P], B]:
    """As ``blocking_as``, for a method without I/O: it runs in the calling thread."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **options: P.kwargs) -> B:
        return kind(self._thread, method(self._inner, *args, **options))

    return _returning(call, kind)


def described_by(original: Callable[..., Any], *, returns: str) -> Callable[[Callable[P, B]], Callable[P, B]]:
    """Decorates a method that passes its options on to its asynchronous ``original``: ``help`` and
    ``inspect.signature`` show the parameters and docstring of ``original``."""

    def described(call: Callable[P, B]) -> Callable[P, B]:
        call.__doc__ = original.__doc__
        signature = inspect.signature(original).replace(return_annotation=returns)
        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return described


def _returning(call: Callable[P, B], kind: Callable[..., B]) -> Callable[P, B]:
    """``call``, which wraps another method, with ``kind`` as the type of its result in its signature and annotations."""
    signature = inspect.signature(call).replace(return_annotation=kind.__name__)
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {**call.__annotations__, "return": kind}
    return call
