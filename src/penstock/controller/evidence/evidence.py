"""Signed documents about entries of the audit log. ``ports.control.evidence.Evidence``."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import convert

from penstock.codec.control.audit_log import AuditKeysRecord
from penstock.codec.notes import VerifierKey, signed_note
from penstock.controller import retention_keys
from penstock.controller.context import Context
from penstock.controller.erasure.cases import Cases
from penstock.controller.erasure.erasures import Erasures
from penstock.controller.evidence.signing import LogKey, Signing
from penstock.controller.settings import DAY_MS
from penstock.core.cases.ledger import held_in, ledger_digest, ledger_from, signed_text
from penstock.core.evidence import documents as d
from penstock.core.evidence.audit_log import ORIGIN_PREFIX, TILE, LogState
from penstock.core.evidence.merkle import Nodes
from penstock.model.answers.evidence import AuditCheckpoint, AuditExport, AuditLogInfo, EvidenceDocument, KeyRotation
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    ScopeNotFoundError,
    SegmentNotFoundError,
)
from penstock.model.names import StreamName, check_name
from penstock.model.retention import HoldInfo

log = logging.getLogger(__name__)

_RETRY_MS = 3_600_000
"""A checkpoint of the day that fails is tried again after an hour."""
ENTRIES_MAX = 10_000  # entries of one document: about 10 MB


class Evidence:
    """See ``ports.control.evidence.Evidence``. ``sweep`` signs a checkpoint once a day, if entries were added."""

    def __init__(
        self, ctx: Context, erasures: Erasures, cases: Cases, holds: Callable[[], Awaitable[Sequence[HoldInfo]]]
    ) -> None:
        self._ctx = ctx
        self._erasures = erasures
        self._cases = cases
        self._holds = holds
        self._signing = Signing(ctx)
        self._since_ms: int | None = None
        """When the log was last signed, or looked at and found unchanged."""

    async def log(self) -> AuditLogInfo:
        state = await self._signing.settled()
        return _info(state, await self._signing.key(state))

    async def rotate_key(self) -> AuditLogInfo:
        return await self._ctx.tasks.run(self._rotate_key())

    async def _rotate_key(self) -> AuditLogInfo:
        await self._signing.rotate(await self._signing.settled())
        return await self.log()

    async def checkpoint(self) -> AuditCheckpoint:
        state = await self._signing.settled()
        # The creation of the key is an entry of the log.
        await self._signing.key(state)
        return await self._signing.checkpoint(await self._signing.settled())

    async def checkpoints(self) -> Sequence[AuditCheckpoint]:
        return await self._signing.checkpoints(await self._signing.settled())

    async def sweep(self) -> None:
        """Sign a checkpoint if the last one, or the first entry, is a day old, and the log has grown since.

        A clock that was set back counts as a day. Damage of the audit stream is logged, and looked at again in an hour.
        """
        if self._ctx.signing is None:
            return
        now_ms = self._ctx.clock.now_ms()
        try:
            await self._sign_if_due(now_ms)
        except CorruptDataError as error:
            log.error("no checkpoint can be signed while the audit stream is damaged", extra={"error": str(error)})
            self._since_ms = now_ms - DAY_MS + _RETRY_MS

    async def _sign_if_due(self, now_ms: int) -> None:
        if self._since_ms is None:
            self._since_ms = await self._last_ms(now_ms)
        if 0 <= now_ms - self._since_ms < DAY_MS:
            return
        self._since_ms = now_ms - DAY_MS + _RETRY_MS
        found = await self.checkpoints()
        if not found or found[-1].size < (await self._signing.settled()).size:
            await self.checkpoint()
        self._since_ms = now_ms

    async def _last_ms(self, now_ms: int) -> int:
        """When the log was last signed; if never, when its first entry was written: a store may restart every day."""
        audit = self._ctx.audit
        try:
            await self._ctx.segments.info(audit.log.segment)
        except SegmentNotFoundError:
            return now_ms
        state = await audit.log_state()
        found = await self._signing.checkpoints(state)
        if found:
            return found[-1].at_ms
        async for entry in audit.log.entries(await self._first(state), state.end):
            return int(d.parsed(entry.decode())["at_ms"])
        return now_ms

    # --- documents ------------------------------------------------------------------------------------------------

    async def consistency(self, before: int) -> EvidenceDocument:
        state, key = await self._now()
        if not 0 < before <= state.size:
            raise InvalidArgumentError("the log has fewer entries", entries=before, size=state.size)
        nodes = await self._nodes(state, [before - 1, before])
        old, new = key.checkpoint(before, nodes.root(0, before)), key.checkpoint(state.size, state.edge.root())
        return _document(
            d.CONSISTENCY, d.consistency(old, new, nodes.consistency(before, state.size), list(key.rotations))
        )

    async def export(self) -> AuditExport:
        state, key = await self._now()
        offset, start = await self._first(state), state.size
        async for entry in self._ctx.audit.log.entries(offset, state.end):
            start = d.parsed(entry.decode())["n"]
            break
        nodes = await self._nodes(state, [start - 1, start])
        note = key.checkpoint(state.size, state.edge.root())
        head = d.export_head(start, nodes.edge(start).hashes, note, list(key.rotations))
        return AuditExport(text=d.line(head), offset=offset, end=state.end)

    async def _first(self, state: LogState) -> int:
        """Where the first entry of the log that is still in the stream begins."""
        log, first = self._ctx.audit.log, state.open_offset
        async for tile in log.tiles(state):
            first = tile.offset
            break
        return max(first, (await self._ctx.segments.info(log.segment)).start_offset)

    async def erasure(self, erasure: str) -> EvidenceDocument:
        found = await self._erasures.get(erasure)
        receipt = found.receipt
        if receipt is None:
            raise NotFoundError("the erasure has no receipt yet", erasure=erasure, state=found.state)
        digest = str(receipt["sha256"])
        return await self._evidence(
            d.ERASURE,
            lambda entry: entry.get("kind") == "erase" and entry.get("sha256") == digest,
            lambda entries: {"receipt": receipt},
            digest,
        )

    async def ledger(self, *, exported_ms: int, with_values: bool, sha256: str) -> str:
        """See ``ports.control.evidence.Evidence.ledger``."""
        state, key = await self._now()
        cases = [
            (item, await self._cases.subject(item.case, with_values=with_values)) for item in await self._cases.list()
        ]
        erasures = [
            (item, await self._erasures.ranges(item.erasure)) for item in await self._erasures.list() if item.receipt
        ]
        ledger = ledger_from(
            exported_ms=exported_ms,
            cases=cases,
            erasures=erasures,
            holds=held_in(await self._holds()),
            key=await self._cases.key(),
            rotations=key.rotations,
        )
        text = signed_text(ledger, state.origin)
        if ledger_digest(ledger) != sha256:
            raise ConflictError(
                "the ledger does not match the store's erasures now; export it again", sha256=sha256[:64]
            )
        return signed_note(text, key.verifier, key.sign(text.encode()))

    async def public_keys(self) -> Sequence[str]:
        """The keys of all logs that this store has had, earlier ones included: a copy has those of its original."""
        ctx, found = self._ctx, dict[str, None]()
        async for entry in ctx.metadata.scan_all(retention_keys.AUDIT_KEYS):
            identifier = ctx.set_aside.text(entry, retention_keys.AUDIT_KEYS)
            record = ctx.set_aside.read(entry, AuditKeysRecord)
            if identifier is not None and record is not None:
                found.update(dict.fromkeys(str(item["old"]) for item in record.rotations))
                found[VerifierKey(name=ORIGIN_PREFIX + identifier, public=record.public).text] = None
        return list(found)

    async def disposal(
        self, target: StreamName | str, *, from_ms: int = 0, to_ms: int | None = None
    ) -> EvidenceDocument:
        name = str(target) if isinstance(target, StreamName) else check_name("scope", target)
        now_ms = self._ctx.clock.now_ms() + 1
        # Nobody can prove what will not be removed.
        end_ms = now_ms if to_ms is None else min(to_ms, now_ms)
        if not 0 <= from_ms < end_ms:
            raise InvalidArgumentError(
                "the times are not in order, or they are in the future", from_ms=from_ms, to_ms=end_ms
            )
        return await self._evidence(
            d.DISPOSAL,
            lambda entry: d.is_removal(entry, name, from_ms, end_ms),
            lambda entries: d.disposal_statement(entries, target=name, from_ms=from_ms, to_ms=end_ms),
            name,
            may_be_empty=await self._exists(target),
        )

    async def _exists(self, target: StreamName | str) -> bool:
        """Whether there is such a stream, or a deleted one that can be restored, or such a scope. A certificate that
        nothing was removed from a mistyped name would look like a true one."""
        try:
            if isinstance(target, StreamName):
                return await self._ctx.streams.find(target) is not None or bool(
                    await self._ctx.metadata.scan(retention_keys.deleted_in(str(target)), limit=1)
                )
            await self._ctx.streams.check_scope(target)
        except ScopeNotFoundError:
            return False
        return True

    async def hold(self, hold_id: str) -> EvidenceDocument:
        return await self._evidence(
            d.HOLD,
            lambda entry: entry.get("kind") in d.HOLDS and entry.get("hold") == hold_id,
            d.hold_statement,
            hold_id,
        )

    async def _evidence(
        self,
        kind: str,
        wanted: Callable[[d.Entry], bool],
        stated: Callable[[Sequence[d.Entry]], dict[str, Any]],
        text: str,
        *,
        may_be_empty: bool = False,
    ) -> EvidenceDocument:
        """A signed document with the entries that are ``wanted``; all of them contain ``text``. ``may_be_empty``: sign
        also if there are no such entries."""
        state, key = await self._now()
        found = await self._find(state, wanted, text)
        if not found and not may_be_empty:
            raise NotFoundError("the audit log has no entry about this, or it has left the audit stream", wanted=text)
        parsed = [d.parsed(entry) for entry in found]
        nodes = await self._nodes(state, [entry["n"] for entry in parsed])
        body = d.evidence(
            kind,
            stated(parsed),
            [(text, nodes.inclusion(entry["n"], state.size)) for text, entry in zip(found, parsed, strict=True)],
            checkpoint=key.checkpoint(state.size, state.edge.root()),
            rotations=list(key.rotations),
            issued_ms=self._ctx.clock.now_ms(),
        )
        return _document(kind, d.with_signature(body, key.verifier.text, key.sign(d.signed_bytes(body))))

    async def _now(self) -> tuple[LogState, LogKey]:
        state = await self._signing.settled()
        key = await self._signing.key(state)
        return await self._signing.settled(), key

    async def _find(self, state: LogState, wanted: Callable[[d.Entry], bool], text: str) -> list[str]:
        """Entries of the log that are still in the stream. Reads all of them, a page at a time."""
        log = self._ctx.audit.log
        needle, found = _needle(text), list[str]()
        async for entry in log.entries(await self._first(state), state.end):
            # Few entries contain the text, and parsing all would take ten times as long.
            if needle in entry and wanted(d.parsed(entry.decode())):
                found.append(entry.decode())
                if len(found) > ENTRIES_MAX:
                    raise InvalidArgumentError("too many entries: ask for a shorter time", limit=ENTRIES_MAX)
        return found

    async def _nodes(self, state: LogState, numbers: Sequence[int]) -> Nodes:
        """The tree of the log, with the leaves that proofs about these entries need."""
        wanted = {number // TILE for number in numbers}
        known: dict[tuple[int, int], bytes] = {}
        whole = state.size - len(state.open)
        leaves = dict(enumerate(state.open, start=whole))
        async for tile in self._ctx.audit.log.tiles(state):
            start = tile.number * TILE
            known[start, start + TILE] = tile.root
            if tile.number in wanted:
                leaves.update(enumerate(tile.hashes, start=start))
        return Nodes(known, leaves)


def _document(kind: str, body: dict[str, Any]) -> EvidenceDocument:
    return EvidenceDocument(kind=kind, text=d.line(body))


def _info(state: LogState, key: LogKey) -> AuditLogInfo:
    return AuditLogInfo(
        origin=state.origin,
        size=state.size,
        key=key.verifier.text,
        rotations=convert(list(key.rotations), list[KeyRotation]),
    )


def _needle(text: str) -> bytes:
    """The bytes of the text in an entry. No entry has half of a surrogate pair, so a search for it finds nothing."""
    return json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass")
