"""How many files and connections this process may have open at a time."""

from __future__ import annotations

import resource

_MOST = 1 << 16
"""More than all connections and files of a store; some systems allow a billion, and some libraries count up to the limit."""
_OWN = 768
"""Kept from clients of the segment store: chunks, log and metadata, HTTP, and what gRPC usually takes."""
_LEAST_CONNECTIONS = 64  # connections, however few descriptors the system allows


def raise_limit() -> None:
    """Raise the limit of descriptors to the most that this process may set without privileges.

    A shell's usual limit of 1,024 is too low: a store that reaches it cannot begin the next file of its log.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return  # Some sandboxes forbid this. Then there are fewer connections.


def connections_allowed() -> int:
    """The number of this process's descriptors that connections of the segment store may use. The rest is for files and
    other connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)
    return max(_LEAST_CONNECTIONS, descriptors - max(_OWN, descriptors // 4))
