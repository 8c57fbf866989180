"""The laws of the ports, as suites that hold every implementation to them.

A suite is a class with one ``async`` method per law, named ``law_...``; subclass it, say how the implementation is
opened, and run each of ``laws(suite)`` on a fresh instance, on any event loop.
"""

from __future__ import annotations

from collections.abc import Sequence


def laws(suite: type[object]) -> Sequence[str]:
    """Names of the suite's laws, sorted."""
    return sorted(name for name in dir(suite) if name.startswith("law_"))


def check(condition: bool, law: str, **facts: object) -> None:
    """Raise ``AssertionError`` naming the law and the facts unless ``condition`` holds, also under ``python -O``."""
    if not condition:
        raise AssertionError(f"{law}. " + " ".join(f"{name}={value!r}" for name, value in facts.items()))
