"""Whose files count: those of this controller, or those of the cluster. Source: docs/design/0065-cluster.md, "Users and
tokens"."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Step(Enum):
    """What brings a controller and its cluster to the same state."""

    NOTHING = "nothing"
    PUSH = "push"
    """The files of the controller become those of the cluster."""
    PULL = "pull"
    """The files of the cluster replace those of the controller, which it has not changed."""
    CONFLICT = "conflict"
    """Both have changed. Those of the cluster count, because other controllers may have used them; the others are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """``digest``: of the state on which controller and cluster last agreed; None: never."""

    digest: str | None


def next_step(*, local: str | None, shared: str | None, seen: Seen) -> Step:
    """The next step.

    Args:
        local: Digest of the files of this controller. None: it lacks a file that the cluster has, or has none. A file that is
            missing was lost: nobody removes all users of a cluster by removing a file.
        shared: Digest of the files of the cluster; None: it has none yet.
        seen: See ``Seen``.
    """
    if local == shared:
        return Step.NOTHING
    if shared is None:
        return Step.PUSH
    if local is None or local == seen.digest:
        return Step.PULL
    if shared == seen.digest:
        return Step.PUSH
    return Step.CONFLICT
