"""Waits until a cluster has what a command has revoked on one of its controllers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.model.errors import ConflictError, UnavailableError
from penstock.storage.access.shared_note import cluster_has, is_shared

_PATIENCE_S = 15.0
"""A controller looks at its files every second, and writes an object and a node."""
_LOOK_S = 0.05


def until_shared(path: Path, is_in_force: Callable[[], bool]) -> None:
    """Return once the cluster of this controller has the file; at once if the directory belongs to no cluster.

    ``is_in_force``: whether the file has the change now. Raises UnavailableError: the change is made here, and other
    controllers do not know it yet. ConflictError: the file of the cluster replaced it, because another controller had
    changed that.
    """
    import time

    if not is_shared(path):
        return
    end_s = time.monotonic() + _PATIENCE_S
    while not cluster_has(path):
        if time.monotonic() >= end_s:
            raise UnavailableError(
                "the change is made on this machine, and its controller has not passed it on to the cluster: start the"
                " controller, or see its log. Until then, other controllers accept what was revoked. To check, repeat the"
                " command",
                path=str(path),
                waited_s=_PATIENCE_S,
            )
        time.sleep(_LOOK_S)
    if not is_in_force():
        raise ConflictError(
            "the change was replaced, because the file was changed on another controller at the same time: nothing was"
            " revoked. Make the change again",
            path=str(path),
            replaced=str(path.with_name(f"{path.name}.conflict")),
        )
