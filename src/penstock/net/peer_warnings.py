"""Logs problems that peers cause, at a limited rate, so that no peer can fill a disk with log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

_WARN_S = 1.0
"""Seconds between two lines of one kind: an attack stays visible, and writes 20 MB a day at most."""


class PeerWarnings:
    """Warnings of one port. ``now_s``: a clock that never jumps, in seconds.

    Messages and kinds must come from the program, never from a peer: each is remembered.
    """

    def __init__(self, log: logging.Logger, now_s: Callable[[], float]) -> None:
        self._log = log
        self._now_s = now_s
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def warn(self, message: str, fields: Mapping[str, object], *, kind: str = "") -> None:
        """Log the message once a second for each kind. The next line reports in ``unsaid`` how many were left out."""
        now_s = self._now_s()
        logged_s, unsaid = self._logged.get((message, kind), (float("-inf"), 0))
        if now_s - logged_s < _WARN_S:
            self._logged[message, kind] = (logged_s, unsaid + 1)
            return
        self._logged[message, kind] = (now_s, 0)
        self._log.warning(message, extra={**fields, "unsaid": unsaid})
