"""The audit log: its key, checkpoints, exports, and signed documents about erasures, removals and holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from penstock.client.retention import When, ms_of
from penstock.codec.events import cut_events, event_bounds
from penstock.codec.notes import parse_checkpoint
from penstock.model.answers.evidence import AuditCheckpoint, AuditLogInfo, EvidenceDocument
from penstock.model.errors import CorruptDataError, InvalidArgumentError, UnavailableError
from penstock.model.names import SYSTEM_SCOPE, StreamName, segment_name
from penstock.model.segments import make_segment_id
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.segments import READ_MAX_BYTES
from penstock.ports.data.service import SegmentService

_SEGMENT = segment_name(StreamName(SYSTEM_SCOPE, "audit"), make_segment_id(0, 0))


class AsyncAuditLog:
    """Evidence that can be verified without the store: docs/how-to/prove.md. Calls raise UnavailableError."""

    def __init__(self, segments: SegmentService, controller: ControlPlane) -> None:
        self._segments = segments
        self._controller = controller

    async def log(self) -> AuditLogInfo:
        """The name and size of the log, its public key, and the earlier keys. Makes the key on first use."""
        return await self._controller.evidence.log()

    async def rotate_key(self) -> AuditLogInfo:
        """Replace the key by a new one, which the old one signs. The old private key is deleted."""
        return await self._controller.evidence.rotate_key()

    async def checkpoint(self) -> AuditCheckpoint:
        """Sign the size and the root of the log. Keep its ``note`` outside of the store: it fixes all entries so far."""
        return await self._controller.evidence.checkpoint()

    async def checkpoints(self) -> Sequence[AuditCheckpoint]:
        """The checkpoints that the store keeps, oldest first: those asked for, and one a day."""
        return await self._controller.evidence.checkpoints()

    async def consistency(self, checkpoint: str) -> EvidenceDocument:
        """The proof that the current log extends the log of an earlier checkpoint, given as its note.

        Raises CorruptDataError (it is not a checkpoint, or the current log contradicts it), InvalidArgumentError (it
        belongs to another log, or the log is smaller).
        """
        earlier = parse_checkpoint(checkpoint)
        origin = (await self.log()).origin
        if earlier.origin != origin:
            raise InvalidArgumentError("the checkpoint belongs to another log", origin=earlier.origin, log=origin)
        found = await self._controller.evidence.consistency(earlier.size)
        # The store was given only the size. It proves its own checkpoint of that size, which may be another one.
        if parse_checkpoint(json.loads(found.text)["checkpoints"][0]).root != earlier.root:
            raise CorruptDataError("the log contradicts the checkpoint: an entry before it was changed", log=origin)
        return found

    async def erasure(self, erasure: str) -> EvidenceDocument:
        """The receipt of an erasure, signed, with the proof that the log has its entry. Raises NotFoundError."""
        return await self._controller.evidence.erasure(erasure)

    async def disposal(self, target: StreamName | str, *, since: When = None, until: When = None) -> EvidenceDocument:
        """A certificate of disposal: what was removed from a stream (``scope/stream``) or a scope, when and by which rule.

        ``since``, ``until``: as for holds; None: from the beginning, until now. Raises InvalidArgumentError.
        """
        about = StreamName.parse(target) if isinstance(target, str) and "/" in target else target
        return await self._controller.evidence.disposal(
            about, from_ms=ms_of(since, name="since") or 0, to_ms=ms_of(until, name="until")
        )

    async def hold(self, hold_id: str) -> EvidenceDocument:
        """When a hold was placed, extended and lifted, and who did it. Raises NotFoundError."""
        return await self._controller.evidence.hold(hold_id)

    async def export(self, write: Callable[[bytes], object]) -> int:
        """Pass all entries of the log that the store still has to ``write``, as parts of a file in order; return how many
        entries. The file can be verified by itself. ``write`` is called with bytes, and may block only briefly.

        Raises TruncatedError if entries leave the stream meanwhile: export again.
        """
        head = await self._controller.evidence.export()
        write(head.text.encode())
        at, rest, count = head.offset, b"", 0
        while at < head.end:
            read = await self._segments.read(_SEGMENT, at, min(READ_MAX_BYTES, head.end - at), wait=False)
            block = rest + b"".join(read.parts)
            if len(block) == len(rest):
                raise UnavailableError("the audit stream ends before its log; export again", segment=_SEGMENT)
            at += len(block) - len(rest)
            bounds = event_bounds(block, segment=_SEGMENT, offset=at - len(block))
            entries = cut_events(block, bounds)
            write(b"".join(entry + b"\n" for entry in entries))
            count += len(entries)
            rest = block[bounds[-1] :]
        return count
