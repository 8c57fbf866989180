"""Which contents of a shared file count: those of this controller, or those of the cluster. Source:
docs/design/0065-cluster.md, "Users and tokens"."""

from __future__ import annotations

from enum import Enum


class Step(Enum):
    """What brings a file of a controller and of its cluster to the same state."""

    NOTHING = "nothing"
    PUSH = "push"
    """The file of the controller becomes that of the cluster."""
    PULL = "pull"
    """The file of the cluster replaces that of the controller, which it has not changed."""
    CONFLICT = "conflict"
    """Both have changed. That of the cluster counts, because other controllers may have used it; the other one is merged
    into it, or kept."""


def next_step(*, local: str | None, shared: str | None, seen: str | None) -> Step:
    """The next step for one file. Files are decided one by one: a change of the users on one controller is no reason to lose
    a revocation on another.

    Args:
        local: Digest of the file of this controller. None: it has none that can be read. Such a file was lost or damaged:
            nobody removes all users of a cluster by removing a file.
        shared: Digest of the file of the cluster; None: it has none yet.
        seen: Digest of the file on which controller and cluster last agreed; None: never.
    """
    if local == shared:
        return Step.NOTHING
    if shared is None:
        return Step.PUSH
    if local is None or local == seen:
        return Step.PULL
    if shared == seen:
        return Step.PUSH
    return Step.CONFLICT
