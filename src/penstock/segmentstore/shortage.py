"""Lack of disk space: which work of a store ran into it, and how appends are refused meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from penstock.core.segments.readiness import ReadinessFacts, not_ready
from penstock.model.errors import ContainerOfflineError, StorageFullError, UnavailableError
from penstock.segmentstore.tiering.tail_cache import CacheMemory


class Shortage:
    """The work that lacks disk space, shared by a store's containers. While it lasts, appends are refused on arrival.

    They are refused at once, not only when memory is used up: on a full disk, truncation needs the rest of the log. The
    shortage ends when the failed work succeeds; a log that could not grow is tried again after ``pause_s`` or a
    truncation.

    ``changed`` is called with the first error when background work starts to lack space, and with None when that ends.
    """

    def __init__(self, changed: Callable[[StorageFullError | None], None], *, pause_s: float) -> None:
        self._changed = changed
        self._pause_s = pause_s
        self._works: dict[object, StorageFullError] = {}
        self._troubles: dict[object, BaseException] = {}
        self._log_full: StorageFullError | None = None
        self._log_again_at = 0.0

    def settle(self, work: object, failure: BaseException | None) -> None:
        """Record the outcome of an attempt of background work; None: success."""
        before = bool(self._works)
        if failure is None:
            self._troubles.pop(work, None)
        else:
            self._troubles[work] = failure
        if isinstance(failure, StorageFullError):
            self._works.setdefault(work, failure)
        else:
            self._works.pop(work, None)
        if before != bool(self._works):
            self._changed(next(iter(self._works.values()), None))

    def log_refused(self, error: StorageFullError) -> None:
        """The log could not grow. An attempt costs writes, so not every append tries again."""
        self._log_full = error
        self._log_again_at = asyncio.get_running_loop().time() + self._pause_s

    def log_shrank(self) -> None:
        self._log_full = None

    @property
    def trouble(self) -> BaseException | None:
        """The last failure of background work, of any kind, until the work succeeds."""
        return next(iter(self._troubles.values()), None)

    @property
    def is_known(self) -> bool:
        """Whether ``refusal`` may return an error."""
        return self._log_full is not None or bool(self._works)

    def refusal(self) -> StorageFullError | None:
        """A new error for an append that would need space, or None."""
        if self._log_full is not None and asyncio.get_running_loop().time() >= self._log_again_at:
            self._log_full = None
        met = next(iter(self._works.values()), self._log_full)
        return None if met is None else StorageFullError(met.message, **met.fields)


def functions_not_ready(
    shortage: Shortage, memory: CacheMemory, offline: ContainerOfflineError | None
) -> Mapping[str, str]:
    """Collect the input of ``readiness``: the functions of a store that do not work now, each with the reason."""
    full, trouble = shortage.refusal(), shortage.trouble
    return not_ready(
        ReadinessFacts(
            offline=None if offline is None else str(offline),
            full=None if full is None else str(full),
            trouble=None if trouble is None else str(trouble) or repr(trouble),
            unreachable=isinstance(trouble, UnavailableError) and not isinstance(trouble, StorageFullError),
            held_bytes=memory.unflushed_bytes + memory.queued_bytes,
            limit_bytes=memory.unflushed_limit_bytes,
        )
    )
