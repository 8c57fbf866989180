"""A service or a control plane, each call of which goes through a function of the test."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tests.flat_control import SUBJECTS, Around


class Face:
    """``around(name, call)`` is the call that is made instead; ``name`` is ``subject.call`` for the control plane.

    It offers no direct appends: the writer sees it as a remote store.
    """

    submit_append = withdraw_appends = open_direct = None

    def __init__(self, inner: Any, around: Callable[[str, Callable[..., Any]], Any]) -> None:
        self._inner = inner
        self._around = around

    def __getattr__(self, name: str) -> Any:
        if name in SUBJECTS:
            return getattr(Around(self._inner, self._around), name)
        found = getattr(self._inner, name)
        return self._around(name, found) if inspect.iscoroutinefunction(found) else found
