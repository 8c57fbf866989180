"""Test suites that check every implementation of a port against the port's laws.

A suite is a class with one ``async`` method per law, named ``law_...``. Subclass it, implement how your implementation
is opened, and pass it to ``run_conformance``:

    class MyLogLaws(DurableLogLaws):
        ...

    @pytest.mark.parametrize("law", laws(DurableLogLaws))
    def test_my_log(law):
        run_conformance(MyLogLaws, law=law)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

Make = Callable[[], object]


def laws(suite: type[object]) -> Sequence[str]:
    """Names of the suite's laws, sorted."""
    return sorted(name for name in dir(suite) if name.startswith("law_"))


def run_conformance(make: Make, *, law: str | None = None, timeout_s: float = 60.0) -> None:
    """Check an implementation against all laws of a suite, or one of them. Each law runs in its own event loop.

    Args:
        make: Called before each law. Returns a new suite, or an asynchronous context whose value is one. law: A name
            from ``laws``. None: all laws. timeout_s: How long one law may take.
    Raises:
        AssertionError: A law does not hold. TimeoutError: A law took too long. Errors of the implementation are not
        caught. A note on the error names the law.
    """
    for name in (law,) if law is not None else asyncio.run(_laws_of(make)):
        try:
            asyncio.run(_hold(make, name, timeout_s))
        except Exception as error:
            error.add_note(f"while trying {name}")
            raise


def _opened(make: Make) -> AbstractAsyncContextManager[object]:
    made = make()
    return made if isinstance(made, AbstractAsyncContextManager) else nullcontext(made)


async def _laws_of(make: Make) -> Sequence[str]:
    async with _opened(make) as suite:
        return laws(type(suite))


async def _hold(make: Make, law: str, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s), _opened(make) as suite:
        await getattr(suite, law)()


def check(condition: bool, law: str, **facts: object) -> None:
    """Raise ``AssertionError`` naming the law and the facts unless ``condition`` holds, also under ``python -O``."""
    if not condition:
        raise AssertionError(f"{law}. " + " ".join(f"{name}={value!r}" for name, value in facts.items()))
