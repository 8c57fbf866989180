"""Counts and logs refused calls. What peers cause must not fill a disk, so refusals of one call to one caller are
logged once a minute."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

from penstock.core.access.refusals import Reason, Refusal
from penstock.model.callers import Caller, current_caller
from penstock.model.errors import PenstockError, PermissionDeniedError
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

_QUIET_S = 60.0
_KEYS_MAX = 1000  # kinds of refusals that are remembered


class Refusals:
    """Receives refusals. ``steady_s``: a clock that never jumps. ``audit`` receives those of callers who have an identity."""

    def __init__(
        self, telemetry: Telemetry, steady_s: Callable[[], float], audit: Callable[[Refusal], None] | None = None
    ) -> None:
        self._audit = audit
        self._telemetry = telemetry
        self._steady_s = steady_s
        self._logged: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def __call__(self, error: PenstockError, caller: Caller | None = None) -> None:
        """``caller``: who was refused; None: the current caller."""
        caller = caller or current_caller()
        door = "" if caller is None else caller.via
        self._telemetry.add("refusals", 1, (door, type(error).__name__))
        identity = str(error.fields.get("identity", ""))
        call, needs = (str(error.fields.get(name, "")) for name in ("call", "needs"))
        if self._audit is not None and isinstance(error, PermissionDeniedError):
            peer = "" if caller is None else caller.peer
            self._audit(Refusal(reason=Reason.RIGHT, identity=identity, peer=peer, via=door, call=call, needs=needs))
        # The key leaves out the missing right, because a caller could name a new resource each time. Without an
        # identity, our own error message stands for the call.
        key = (identity, call or error.message)
        now_s, (at_s, unlogged) = self._steady_s(), self._logged.pop(key, (float("-inf"), 0))
        if now_s - at_s < _QUIET_S:
            self._logged[key] = (at_s, unlogged + 1)
            return
        self._logged[key] = (now_s, 0)
        if len(self._logged) > _KEYS_MAX:
            self._logged.popitem(last=False)
        peer = "" if caller is None else caller.peer
        fields = {"identity": identity, "call": call, "needs": needs, "peer": peer, "more_before": unlogged}
        if not call:
            fields["reason"] = error.message
        log.warning("call refused", extra=fields)
