"""The API of cases: the erasure of a person's data, from the request to the proof."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.client.erasure import AsyncErasures
from penstock.client.retention import When, ms_of
from penstock.client.retry import retrying
from penstock.core.cases.ledger import Ledger, held_in, ledger_digest, ledger_from
from penstock.model.answers.erasure import ErasureCase
from penstock.model.errors import ConflictError, InvalidArgumentError
from penstock.model.names import StreamName
from penstock.ports.clock import Clock
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng

_POLL_S = 0.1
_POLL_MAX_S = 2.0
_EXPORTS = 5  # attempts to export a ledger while erasures end
_ENDS = ("verified", "closed", "withdrawn")


def subject_of(json_field: str | None, values: Iterable[str]) -> dict[str, Any]:
    """The subject of events that hold one of the values: in a JSON field, or (None) anywhere in the payload."""
    if isinstance(values, str):
        raise InvalidArgumentError("values must be a collection of strings")
    wanted = sorted(set(values))
    if json_field is None:
        return {"by": "payload contains", "values": wanted}
    return {"by": "json field", "field": json_field, "values": wanted}


class AsyncCases:
    """All cases of a store."""

    def __init__(self, segments: SegmentService, controller: ControlPlane, clock: Clock, rng: Rng) -> None:
        self._controller = controller
        self._clock = clock
        self._rng = rng
        self._erasures = AsyncErasures(None, segments, controller, rng)

    async def open(
        self,
        targets: str | Iterable[str],
        values: Iterable[str],
        *,
        who: str,
        why: str,
        json_field: str | None = None,
        due: When = None,
        keep_values: bool = True,
        case: str | None = None,
    ) -> ErasureCase:
        """Open a case: all events of these values are erased, now and until the case is closed. Returns its state.

        The store searches and erases by itself; ``wait`` returns the case once it is verified.

        Args:
            targets: Streams (``scope/stream``), scopes, or ``*`` for all streams.
            values: The person's values, for example ids and addresses of mail. A matching event holds one of them.
            json_field: The field of JSON events that is compared, for example ``user.id``. None: a value may be
                anywhere in the payload.
            who, why: Who asks for it, and the reason. Both are recorded, also in the receipts.
            due: When the case should be verified: a datetime with a time zone, or milliseconds since the Unix epoch. None:
                in 30 days.
            keep_values: False: the store keeps only keyed digests of the values; this needs ``json_field``.
            case: Its id. None: a new one. Opening the same case again does nothing.
        Raises: AlreadyExistsError (another case has the id), InvalidArgumentError.
        """
        chosen = case or self._rng.uuid().hex
        wanted = [targets] if isinstance(targets, str) else list(targets)
        subject = subject_of(json_field, values)
        due_ms = ms_of(due, name="due")
        return await retrying(
            lambda: self._controller.cases.open(
                chosen,
                targets=wanted,
                subject=subject,
                who=who,
                why=why,
                due_ms=due_ms,
                keep_values=keep_values,
            ),
            self._rng,
        )

    async def list(self) -> Sequence[ErasureCase]:
        """All cases; those that have not ended first, in the order in which they are due."""
        return await retrying(self._controller.cases.list, self._rng)

    async def show(self, case: str) -> ErasureCase:
        """One case, with the tables that have copies of its events. Raises NotFoundError."""
        return await retrying(lambda: self._controller.cases.get(case), self._rng)

    async def look(self, case: str) -> ErasureCase:
        """Search, erase and verify now, not only in the next pass; return the resulting state. Raises NotFoundError."""
        return await retrying(lambda: self._controller.cases.look(case), self._rng)

    async def wait(
        self,
        case: str,
        *,
        until_deferred: bool = False,
        progress: Callable[[ErasureCase], None] | None = None,
    ) -> ErasureCase:
        """Wait until the case is verified, closed or withdrawn, also while holds defer it unless ``until_deferred``.

        ``progress`` is called with each state until then. Cancelled: the case goes on. Raises NotFoundError.
        """
        pause_s = _POLL_S
        while True:
            state = await self.show(case)
            if state.state in _ENDS or (until_deferred and state.state == "deferred"):
                return state
            if progress is not None:
                progress(state)
            await asyncio.sleep(pause_s)
            pause_s = min(_POLL_MAX_S, 1.5 * pause_s)

    async def close(self, case: str, *, who: str, why: str, pending_tables: bool = False) -> ErasureCase:
        """Close a verified case, after a last search. Events that arrive later are kept. ``who`` and ``why`` are recorded.

        ``pending_tables``: close it also while tables have rows of its events; the end then names them. Raises
        NotFoundError, ConflictError (it is not verified, was withdrawn, or is pending in tables), InvalidArgumentError.
        """
        close = partial(self._controller.cases.close, case, who=who, why=why, pending_tables=pending_tables)
        return await retrying(close, self._rng)

    async def confirm_table(
        self, case: str, table: str, *, stream: StreamName | str, who: str, why: str
    ) -> ErasureCase:
        """Record your statement that a table of a deleted stream has no rows of the person's events.

        Use it for a table that the case shows as pending and no job can erase any more. Nothing verifies the statement: the
        table is then ``confirmed`` by you, and not ``done``. It does not count for a stream that is deleted later. ``who``
        and ``why`` are recorded. A repeated call changes nothing. Raises NotFoundError, ConflictError (the case has ended
        or waits for approval; nothing is pending there; the stream exists or can be restored), InvalidArgumentError.
        """
        name = stream if isinstance(stream, StreamName) else StreamName.parse(stream)
        confirm = partial(self._controller.cases.confirm_table, case, table, stream=name, who=who, why=why)
        return await retrying(confirm, self._rng)

    async def withdraw(self, case: str, *, who: str, why: str) -> ErasureCase:
        """End a case without its proof. What it has erased stays erased. ``who`` and ``why`` are recorded.

        Raises NotFoundError, ConflictError (it is closed), InvalidArgumentError.
        """
        return await retrying(lambda: self._controller.cases.withdraw(case, who=who, why=why), self._rng)

    async def subject(self, case: str, *, with_values: bool = False) -> Mapping[str, Any]:
        """The matcher of a case, for a ledger outside of the store. Keyed digests replace values where possible.

        ``with_values``: the values themselves, as far as the store has them. Raises NotFoundError.
        """
        return await retrying(lambda: self._controller.cases.subject(case, with_values=with_values), self._rng)

    async def ledger(self, *, with_values: bool = False) -> Ledger:
        """All erasures, cases and holds of the store. A store from an older copy must repeat these erasures.

        The store signs it with the key of its audit log. Without ``with_values`` it holds no values: values of fields
        are replaced by keyed digests, and values searched for in whole payloads are left out. With ``--auth`` it needs the
        right ``erase`` on the whole store.

        Raises ConflictError (erasures keep changing the ledger), PermissionDeniedError, NotFoundError (the store has no
        private key), UnavailableError.
        """
        for _ in range(_EXPORTS - 1):
            with suppress(ConflictError):
                return await self._signed(with_values=with_values)
        return await self._signed(with_values=with_values)

    async def _signed(self, *, with_values: bool) -> Ledger:
        rotations = (await retrying(self._controller.evidence.log, self._rng)).rotations
        holds = await retrying(lambda: self._controller.holds.list(None), self._rng)
        erasures = await retrying(lambda: self._controller.erasures.list(None), self._rng)
        ledger = ledger_from(
            exported_ms=self._clock.now_ms(),
            cases=[(item, await self.subject(item.case, with_values=with_values)) for item in await self.list()],
            erasures=[(item, (await self._erasures.details(item.erasure))[0]) for item in erasures if item.receipt],
            holds=held_in(holds),
            key=await retrying(self._controller.cases.key, self._rng),
            rotations=[{"old": item.old, "new": item.new, "signature": item.signature} for item in rotations],
        )
        sign = partial(
            self._controller.evidence.ledger,
            exported_ms=ledger.exported_ms,
            with_values=with_values,
            sha256=ledger_digest(ledger),
        )
        return replace(ledger, note=await retrying(sign, self._rng))
