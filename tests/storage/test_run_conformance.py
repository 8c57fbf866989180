"""The one entrance to the laws of the ports: it tries each law afresh, and names the one that does not hold."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.ports.keyvalue import KeyValueStore
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.testing import run_conformance
from penstock.testing.conformance import laws
from penstock.testing.conformance.keyvalue import KeyValueLaws


class Laws(KeyValueLaws):
    def __init__(self, store: type[MemoryKeyValue] = MemoryKeyValue) -> None:
        self.store = store()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[KeyValueStore]:
        yield self.store


class Forgetful(MemoryKeyValue):
    async def get_many(self, keys):
        return [None for _ in keys]


def test_each_law_meets_a_suite_of_its_own_which_is_left_afterwards():
    entered, left = [], []

    @asynccontextmanager
    async def suite():
        entered.append(len(left))
        yield Laws()
        left.append(None)

    run_conformance(suite)
    # One more than there are laws: the first one is asked for their names.
    assert entered == list(range(len(laws(KeyValueLaws)) + 1))
    assert len(left) == len(entered)


def test_a_law_that_does_not_hold_is_named():
    with pytest.raises(AssertionError) as caught:
        run_conformance(lambda: Laws(Forgetful))
    (note,) = caught.value.__notes__
    name = note.removeprefix("while trying ")
    assert name in laws(KeyValueLaws)
    with pytest.raises(AssertionError):
        run_conformance(lambda: Laws(Forgetful), law=name)
