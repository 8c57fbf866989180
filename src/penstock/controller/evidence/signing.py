"""The key of the audit log, its rotation, and signed checkpoints.

Which key signs is decided by a record, in the step that writes the audit entry of its creation or rotation. The private
key is on disk before. So a crash leaves at most a file that no record names; the next rotation deletes it.
Source: docs/design/0060-evidence.md.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.audit_log import AuditCheckpointRecord, AuditKeysRecord
from penstock.codec.notes import VerifierKey, checkpoint_text, signed_note
from penstock.controller import retention_keys
from penstock.controller.context import Context
from penstock.controller.metadata import Stored, changing, overwrite
from penstock.core.evidence.audit_log import ORIGIN_PREFIX, LogState
from penstock.core.evidence.documents import rotation_bytes
from penstock.model.answers.evidence import AuditCheckpoint
from penstock.model.errors import InternalError, UnsupportedError
from penstock.model.values.dataclass import dataclass
from penstock.ports.signing import SigningKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKey:
    """The key that signs now. ``rotations``: the earlier ones, oldest first."""

    verifier: VerifierKey
    rotations: Sequence[Mapping[str, str]]
    keys: SigningKeys

    def sign(self, message: bytes) -> bytes:
        return self.keys.sign(self.verifier.public, message)

    def checkpoint(self, size: int, root: bytes) -> str:
        """A signed note of the log at that size."""
        text = checkpoint_text(self.verifier.name, size, root)
        return signed_note(text, self.verifier, self.sign(text.encode()))


def identifier(state: LogState) -> str:
    return state.origin.removeprefix(ORIGIN_PREFIX)


class Signing:
    """Keys and checkpoints of the current audit log."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def _keys(self) -> SigningKeys:
        if self._ctx.signing is None:
            raise UnsupportedError("this controller has no place for signing keys")
        return self._ctx.signing

    async def settled(self) -> LogState:
        """The log with all entries that were decided. It has at least one: only then its name is certain."""
        await self._ctx.audit.drain()
        state = await self._ctx.audit.log_state()
        if not state.size:
            await self._record({"action": "requested"})
            state = await self._ctx.audit.log_state()
        return state

    async def _record(self, fields: Mapping[str, Any]) -> None:
        await self._ctx.metadata.put(*self._entry(fields))
        await self._ctx.audit.drain()

    def _entry(self, fields: Mapping[str, Any]) -> Sequence[Any]:
        return self._ctx.audit.puts([AuditEntry(kind=AuditKind.KEY, target="", fields=fields)])

    async def key(self, state: LogState) -> LogKey:
        """The key of the log. Made on first use."""
        keys = self._keys()
        found = await self._found(state)
        if found.value is None:
            async with self._ctx.locks.hold("audit-keys"):
                await changing(lambda: self._make(state, keys))
            self._ctx.audit.soon()
            found = await self._found(state)
        if found.value is None:
            raise InternalError("the key of the audit log was lost while it was made")
        verifier = VerifierKey(name=state.origin, public=found.value.public)
        return LogKey(verifier=verifier, rotations=found.value.rotations, keys=keys)

    async def _found(self, state: LogState) -> Stored[AuditKeysRecord]:
        return await self._ctx.metadata.get(retention_keys.audit_keys(identifier(state)), AuditKeysRecord)

    async def _make(self, state: LogState, keys: SigningKeys) -> None:
        found = await self._found(state)
        if found.value is None:
            public = await keys.create()
            new = VerifierKey(name=state.origin, public=public).text
            await self._ctx.metadata.put(
                found.put(AuditKeysRecord(public=public)), *self._entry({"action": "created", "new": new})
            )

    async def rotate(self, state: LogState) -> None:
        """Replace the key by a new one, which the old one signs in an audit entry."""
        await self.key(state)
        async with self._ctx.locks.hold("audit-keys"):
            await changing(lambda: self._rotate(state))
            # Another controller may have rotated meanwhile: keep the key that is current now. Under the lock, because
            # another call may have made a key that no record names yet. The list comes first: a controller that reads
            # the record was still active when it listed, so no later one has made a key that is in the list.
            listed = await self._keys().listed()
            found = await self._found(state)
            if found.value is not None:
                current = found.value.public
                await self._keys().discard([public for public in listed if public != current])
        self._ctx.audit.soon()

    async def _rotate(self, state: LogState) -> None:
        old, found, keys = await self.key(state), await self._found(state), self._keys()
        new = VerifierKey(name=state.origin, public=await keys.create())
        signature = b64encode(old.sign(rotation_bytes(old.verifier.text, new.text))).decode()
        rotation = {"old": old.verifier.text, "new": new.text, "signature": signature}
        record = AuditKeysRecord(public=new.public, rotations=[*old.rotations, rotation])
        await self._ctx.metadata.put(found.put(record), *self._entry({"action": "rotated", **rotation}))

    async def checkpoint(self, state: LogState) -> AuditCheckpoint:
        """Sign the log up to ``state``, and store the checkpoint."""
        key, at_ms = await self.key(state), self._ctx.clock.now_ms()
        note = key.checkpoint(state.size, state.edge.root())
        await self._ctx.metadata.put(
            overwrite(
                retention_keys.audit_checkpoint(identifier(state), state.size),
                AuditCheckpointRecord(note=note, at_ms=at_ms),
            )
        )
        return AuditCheckpoint(origin=state.origin, size=state.size, note=note, at_ms=at_ms)

    async def checkpoints(self, state: LogState) -> Sequence[AuditCheckpoint]:
        """The stored checkpoints of the log, oldest first."""
        ctx, found = self._ctx, []
        async for entry in ctx.metadata.scan_all(retention_keys.audit_checkpoints(identifier(state))):
            record = ctx.set_aside.read(entry, AuditCheckpointRecord)
            size = ctx.set_aside.key(entry, lambda key: int(key.rsplit(b"/", 1)[1], 16))
            if record is not None and size is not None:
                found.append(AuditCheckpoint(origin=state.origin, size=size, note=record.note, at_ms=record.at_ms))
        return found
