"""How long an owner may answer reads after the coordinator answered its last write.

Source: docs/design/0061-coordination.md, "Leases".
"""

from __future__ import annotations

LEASE_SHARE = 2 / 3
"""Share of a session for which an answered write counts. A session has at least two ticks, and a leader may hear of it
half a tick late. Even then, a twelfth of the session is left for clocks of different rates."""
RENEWALS_PER_SESSION = 6
"""So a lease outlives three lost renewals, or the election of a leader, which takes a second, at sessions of 4 s."""


def lease_end_s(sent_s: float, session_s: float) -> float:
    """The end of the lease that a write renews, on the owner's clock.

    Args:
        sent_s: When the write was sent, not when it was answered. session_s: The session length that the coordinator
        granted, in seconds.
    """
    return sent_s + LEASE_SHARE * session_s


def renewal_pause_s(session_s: float) -> float:
    """Seconds between two renewals."""
    return session_s / RENEWALS_PER_SESSION
