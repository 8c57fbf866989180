"""Penstock: a stream store for Python and Spark, in which *when data goes away* is a promise.

``penstock.open("./data")`` runs a store inside this process; ``penstock.connect("localhost:9090")`` reaches one that runs
elsewhere. Both give the same ``Store``. ``open_async`` and ``connect_async`` give an ``AsyncStore`` for programs with an
event loop of their own. Errors are classes of ``penstock.errors``, all of them ``PenstockError``.

Importing it loads nothing; each name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from penstock.client.blocking.stores import Store
    from penstock.client.reading.blocks import Event
    from penstock.client.store import AsyncStore
    from penstock.model import errors
    from penstock.model.callers import Caller, calling
    from penstock.model.cuts import StreamCut
    from penstock.model.errors import PenstockError
    from penstock.model.names import StreamName
    from penstock.model.policies import RetentionPolicy, RetentionType, ScalingPolicy
    from penstock.model.retention import INHERIT, Backlog, Idle, PolicyDocument, Retain
    from penstock.model.segments import KeyRange

# Named as text: every room imports this package, and must not reach the rooms above it thereby.
_HOMES = {
    "INHERIT": "model.retention",
    "AsyncStore": "client.store",
    "Backlog": "model.retention",
    "Caller": "model.callers",
    "Event": "client.reading.blocks",
    "Idle": "model.retention",
    "KeyRange": "model.segments",
    "PenstockError": "model.errors",
    "PolicyDocument": "model.retention",
    "Retain": "model.retention",
    "RetentionPolicy": "model.policies",
    "RetentionType": "model.policies",
    "ScalingPolicy": "model.policies",
    "Store": "client.blocking.stores",
    "StreamCut": "model.cuts",
    "StreamName": "model.names",
    "calling": "model.callers",
}

__version__ = "0.1.0"
__all__ = [
    "INHERIT",
    "AsyncStore",
    "Backlog",
    "Caller",
    "Event",
    "Idle",
    "KeyRange",
    "PenstockError",
    "PolicyDocument",
    "Retain",
    "RetentionPolicy",
    "RetentionType",
    "ScalingPolicy",
    "Store",
    "StreamCut",
    "StreamName",
    "__version__",
    "calling",
    "connect",
    "connect_async",
    "errors",
    "open",
    "open_async",
]

DIAL_S = 5.0


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module(f"{__name__}.model.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def open(path: str | Path, **settings: Any) -> Store:  # noqa: A001 - the word for it
    """A store on the directory ``path``, created where it is missing, in this process; nothing listens.

    ``settings``: ``memory_bytes``, ``log_bytes``, ``retention_cycle_ms`` and the other fields of
    ``penstock.app.settings.EmbeddedSettings``. Raises DirectoryInUseError where the directory is open already, here or in
    another process, VersionTooNewError, InvalidArgumentError (a foreign directory, an unknown setting), CorruptDataError;
    nothing was changed then.
    """
    store: Store = import_module("penstock.app.embedded").open_store(path, **settings)
    return store


def connect(address: str = "localhost:9090", *, dial_s: float | None = DIAL_S) -> Store:
    """A store that runs elsewhere.

    Raises NotConnectedError where nothing answers on ``address`` within ``dial_s`` seconds (None: 30, for a store that is
    just being started). Once connected, a restart of the store goes unnoticed for 30 seconds.
    """
    store: Store = import_module("penstock.app.remote").connect_store(address, dial_s=dial_s)
    return store


def open_async(path: str | Path, **settings: int) -> AbstractAsyncContextManager[AsyncStore]:
    """As ``open``, for ``async with`` in a running event loop, which then also does the store's work."""
    opened: AbstractAsyncContextManager[AsyncStore] = import_module("penstock.app.embedded").open_async_store(
        path, settings
    )
    return opened


def connect_async(
    address: str = "localhost:9090", *, dial_s: float | None = DIAL_S
) -> AbstractAsyncContextManager[AsyncStore]:
    """As ``connect``, for ``async with`` in a running event loop."""
    opened: AbstractAsyncContextManager[AsyncStore] = import_module("penstock.app.remote").connect_async_store(
        address, dial_s=dial_s
    )
    return opened
