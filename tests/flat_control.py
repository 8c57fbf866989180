"""Control planes of tests, written flat: a method ``streams_create`` answers ``control.streams.create``."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

from penstock.ports.control.plane import ControlPlane

SUBJECTS = frozenset(name for name, _ in inspect.getmembers(ControlPlane, lambda item: isinstance(item, property)))


def calls_of_the_port() -> list[tuple[str, Callable[..., Awaitable[Any]]]]:
    """Each call of the control plane as ``subject.call``, with its declaration in the port."""
    return [
        (f"{subject}.{name}", function)
        for subject in sorted(SUBJECTS)
        for name, function in inspect.getmembers(
            get_type_hints(getattr(ControlPlane, subject).fget)["return"], inspect.iscoroutinefunction
        )
    ]


class FlatControl:
    """What a test replaces of a control plane; the rest goes to ``_inner``, if there is one."""

    _inner: Any = None

    def __getattr__(self, name: str) -> Any:
        if name in SUBJECTS:
            return _Subject(self, name)
        if self._inner is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._inner, name)


class _Subject:
    def __init__(self, flat: FlatControl, subject: str) -> None:
        self._flat = flat
        self._subject = subject

    def __getattr__(self, name: str) -> Any:
        own = f"{self._subject}_{name}"
        if own in vars(self._flat) or hasattr(type(self._flat), own):
            return getattr(self._flat, own)
        if self._flat._inner is None:
            raise AttributeError(f"{self._subject}.{name}")
        return getattr(getattr(self._flat._inner, self._subject), name)


class Around:
    """A control plane each call of which goes through ``around(name, call)``, ``name`` being ``subject.call``."""

    def __init__(self, inner: Any, around: Callable[[str, Callable[..., Awaitable[Any]]], Any]) -> None:
        self._inner = inner
        self._around = around

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return _AroundSubject(found, name, self._around) if name in SUBJECTS else found


class _AroundSubject:
    def __init__(self, inner: Any, subject: str, around: Callable[[str, Callable[..., Awaitable[Any]]], Any]) -> None:
        self._inner = inner
        self._subject = subject
        self._around = around

    def __getattr__(self, name: str) -> Any:
        return self._around(f"{self._subject}.{name}", getattr(self._inner, name))
