"""Appends that came in one frame, and the one reply for all of them."""

from __future__ import annotations

_FAILURES_BYTES = 8 << 20
NOT_STORED = -1  # length of an append that is not stored


class Many:
    """Appends that came in one frame. One frame answers them, once the outcome of each is known.

    ``lengths``: lengths of their segments. ``failures``: frames that say why an append was not stored. An append that
    was not stored and has no frame failed because one before it did.
    """

    __slots__ = ("failure_bytes", "failures", "left", "lengths", "rid")

    def __init__(self, rid: int, count: int) -> None:
        self.rid = rid
        self.left = count
        self.lengths = [NOT_STORED] * count
        self.failures: list[tuple[int, bytes]] = []
        self.failure_bytes = 0

    def failed(self, index: int, reply: bytes) -> None:
        # Beyond the bound, the append counts as failed because of an earlier one: the client sets up again and then
        # gets the error.
        self.failure_bytes += len(reply)
        if self.failure_bytes <= _FAILURES_BYTES:
            self.failures.append((index, reply))
