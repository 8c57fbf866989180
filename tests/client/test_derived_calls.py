"""The blocking client has the calls of the asynchronous one: same names, parameters, documentation, without ``await``."""

from __future__ import annotations

import inspect
import io
import pydoc
import typing
from collections.abc import Coroutine
from typing import Any

import duckdb
import polars
import pyarrow
import pytest
from client_world import open_services

import penstock
from penstock.client.blocking.derived import Blocking, blocking
from penstock.client.store import AsyncStore
from penstock.client.stream import Unchanged
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


PAIRS = {
    name.removeprefix("Async"): (getattr(penstock, name.removeprefix("Async")), getattr(penstock, name))
    for name in penstock.__all__
    if name.startswith("Async")
}
ASYNC_ONLY = {
    "Acknowledgement": {"receipt"},
    "ByteStream": {"buffer", "check_open", "peeked", "pending_bytes", "ready_bytes", "take"},
    "Erasures": {"details", "run"},
    "GroupReader": {
        *("abandon", "call", "check_may_read", "is_left", "leave", "leaving", "seen", "take", "take_block"),
        *("begin_transaction", "commit_with", "end_transaction", "report_commit", "rewind"),
    },
    "GroupTransaction": {"block_bytes", "check"},
    "Reader": {"abandon", "open_bounded", "take_block"},
    "ReaderGroup": {"initialise", "retention"},
    "Stream": {"layout"},
    "StreamsReader": {"abandon", "open_bounded", "take_block"},
    "Table": {"pages"},
    "Transaction": {"abandon", "check"},
    "Writer": {"adopt", "prepare", "take"},
}
"""What other parts of the client call; it is of no use in another thread."""
PULLED = {"to_arrow_reader", "to_duckdb"}
"""Libraries pull these from a thread that cannot await; ``read_arrow`` of an asynchronous reader gives the same batches."""
BLOCKING_ONLY = {
    "Acknowledgement": {"result"},
    "ByteStream": public(io.BufferedIOBase) - public(penstock.AsyncByteStream),
    "GroupReader": {"abandon_in_child", "name", "wait_block"},
    "Reader": {"abandon_in_child", "stream", "wait_block", *PULLED},
    "Store": {"call", "close"},
    "Stream": {"name"},
    "StreamsReader": {"abandon_in_child", "wait_block", *PULLED},
    "Writer": {"abandon_in_child"},
}
"""A file has the methods of Python's. An acknowledgement is awaited instead. Names and streams are plain attributes of the asynchronous objects."""


def shared() -> list[tuple[str, str]]:
    return [(pair, name) for pair, (kind, other) in PAIRS.items() for name in sorted(public(kind) & public(other))]


@pytest.mark.parametrize("pair", PAIRS)
def test_both_clients_have_the_same_calls(pair):
    kind, other = PAIRS[pair]
    assert public(other) - public(kind) == ASYNC_ONLY.get(pair, set())
    assert public(kind) - public(other) == BLOCKING_ONLY.get(pair, set())


@pytest.mark.parametrize(("pair", "name"), shared())
def test_a_call_has_the_parameters_of_its_counterpart(pair, name):
    mine, theirs = (inspect.getattr_static(kind, name) for kind in PAIRS[pair])
    if not inspect.isfunction(mine):
        assert isinstance(mine, property)
        return
    assert not inspect.iscoroutinefunction(mine)
    assert inspect.signature(mine).parameters == inspect.signature(theirs).parameters
    assert inspect.getdoc(mine)
    if hasattr(mine, "__wrapped__"):
        assert mine.__wrapped__ is theirs
        assert mine.__doc__ == theirs.__doc__
        assert (mine.__module__, mine.__qualname__) == (PAIRS[pair][0].__module__, f"{pair}.{name}")


def test_the_result_of_a_derived_call_is_that_of_its_counterpart_or_the_blocking_object():
    assert typing.get_type_hints(penstock.Stream.head) == {"return": penstock.StreamCut}
    assert typing.get_type_hints(penstock.Store.stream)["return"] is penstock.Stream
    assert inspect.signature(penstock.Store.create_stream).return_annotation == "Stream"
    assert inspect.signature(AsyncStore.create_stream).return_annotation == "AsyncStream"


def types_in(hint: Any) -> set[type]:
    inner = typing.get_args(hint)
    if inner:
        return {found for item in inner for found in (types_in(item) if not isinstance(item, list) else set())}
    return {hint} if inspect.isclass(hint) and hint.__module__.startswith("penstock.") else set()


@pytest.mark.parametrize("pair", PAIRS)
def test_each_type_that_a_call_takes_or_returns_is_a_name_of_the_package(pair):
    types = {kind for kind in vars(penstock.answers).values() if inspect.isclass(kind)}
    exported = {getattr(penstock, name) for name in penstock.__all__} | types | {Unchanged}
    for kind in PAIRS[pair]:
        for name in public(kind) - ASYNC_ONLY.get(pair, set()) - {"write_arrow"}:  # of pyarrow's types alone
            method = inspect.getattr_static(kind, name)
            hints = typing.get_type_hints(
                method.fget if isinstance(method, property) else method,
                localns={"pa": pyarrow, "pl": polars, "duckdb": duckdb},
            )
            assert set().union(*map(types_in, hints.values())) <= exported, (kind, name)


def test_help_shows_a_derived_call_as_a_plain_method():
    shown = pydoc.render_doc(penstock.Stream.head, renderer=pydoc.plaintext)
    assert "function head in module penstock.client.blocking.stores" in shown
    assert "head(self) -> 'StreamCut'\n    Where data begins: the first position that was not truncated." in shown
    whole = pydoc.render_doc(penstock.Store, renderer=pydoc.plaintext)
    assert "create_stream(self, name: 'str | StreamName', *, segments: 'int' = 1" in whole
    assert "async create_stream" not in whole


def test_a_derived_call_runs_in_the_loop_and_passes_arguments_and_errors_on():
    class Inner:
        async def divide(self, above: int, *, below: int = 1) -> float:
            return above / below

    class Thread:
        def call(self, work: Coroutine[Any, Any, Any]) -> object:
            with pytest.raises(StopIteration) as done:
                work.send(None)
            return done.value.value

    class Outer(Blocking[Inner]):
        divide = blocking(Inner.divide)

    outer = Outer(Thread(), Inner())
    assert (outer.divide(6), outer.divide(above=6, below=4)) == (6.0, 1.5)
    with pytest.raises(TypeError, match="divide"):
        outer.divide(6, 4)
    with penstock.Store(lambda: open_services(RealClock(), RealRng())) as store:
        with pytest.raises(penstock.errors.ScopeNotFoundError):
            store.stream("a/s").head()
        made = store.create_stream("a/s", create_scope=True)
        assert isinstance(made, penstock.Stream)
        assert store.stream("a/s").head() == made.tail()
