"""Penstock: a stream store for Python and Spark, in which *when data goes away* is a promise.

``penstock.open("./data")`` runs a store inside this process; ``penstock.connect("localhost:9090")`` reaches one that runs
elsewhere. Both give the same ``Store``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.client.blocking import Store

# Named as text: every room imports this package, and must not reach the rooms above it thereby.

__version__ = "0.1.0"
__all__ = ["__version__", "connect", "open"]


def open(path: str | Path, **settings: int) -> Store:  # noqa: A001 - the word for it
    """A store on the directory ``path``, in this process; nothing listens.

    ``settings``: ``memory_bytes``, ``log_bytes``, ``retention_cycle_ms`` and the other fields of
    ``penstock.app.settings.EmbeddedSettings``. Raises DirectoryInUseError where another process has the directory,
    VersionTooNewError, InvalidArgumentError (a foreign directory), CorruptDataError; nothing was changed then.
    """
    store: Store = import_module("penstock.app.embedded").open_store(path, **settings)
    return store


def connect(address: str = "localhost:9090", *, dial_s: float | None = None) -> Store:
    """A store that runs elsewhere.

    Raises NotConnectedError where nothing answers on ``address`` within ``dial_s`` seconds (default 30: a store that is just
    being started again is waited for).
    """
    store: Store = import_module("penstock.app.remote").connect_store(address, dial_s=dial_s)
    return store
