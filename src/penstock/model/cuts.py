"""Stream cuts: one consistent position of a stream, as an offset for each segment."""

from __future__ import annotations

import base64
import gzip
import zlib
from collections.abc import Mapping
from typing import Literal, TypeAlias

from penstock.model.errors import InvalidCutError, InvalidNameError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId, epoch_of, make_segment_id, number_of
from penstock.model.values.dataclass import dataclass

NOT_STARTED = -1
"""Offset of a segment that is known but not started, because a predecessor is unfinished."""

_TEXT_MAX = 1 << 24  # bytes after decompression; bounds what a text from outside can allocate

End: TypeAlias = Literal["head", "tail"]
ENDS: Mapping[str, End] = {"earliest": "head", "head": "head", "latest": "tail", "tail": "tail"}
"""The ends of a stream as they are now, by every word that names one."""


@dataclass(frozen=True, slots=True)
class StreamCut:
    """One byte offset for each segment of the cut, keyed by segment id.

    Offsets are event boundaries; ``NOT_STARTED`` reads as 0 in comparisons and is never sent to a store. A cut
    without positions is unbounded: as a start it means the head, as an end the tail.
    """

    stream: StreamName
    positions: Mapping[SegmentId, int]

    def __post_init__(self) -> None:
        for segment, offset in self.positions.items():
            if offset < NOT_STARTED or segment < 0:
                raise InvalidCutError("offset of a cut is negative", segment=segment, offset=offset)

    def __hash__(self) -> int:
        return hash((self.stream, frozenset(self.positions.items())))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, StreamCut)
            and self.stream == other.stream
            and dict(self.positions) == dict(other.positions)
        )

    def __repr__(self) -> str:
        # The Python expression, so that it can be read and pasted; ``to_text`` is the form for other programs.
        positions = {segment: self.positions[segment] for segment in sorted(self.positions)}
        return f"StreamCut(StreamName({self.stream.scope!r}, {self.stream.stream!r}), {positions})"

    def to_text(self) -> str:
        """The text form that Pravega's Java client reads and writes: base64 of gzip of a comma list.

        Deterministic: equal cuts give equal text.
        """
        ids = sorted(self.positions)
        body = ":".join(
            (
                "0",
                str(self.stream),
                ",".join(str(number_of(i)) for i in ids),
                ",".join(str(epoch_of(i)) for i in ids),
                ",".join(str(self.positions[i]) for i in ids),
            )
        )
        return base64.b64encode(gzip.compress(body.encode(), mtime=0)).decode()

    @classmethod
    def from_text(cls, text: str) -> StreamCut:
        """Parse ``to_text``. Raises ``InvalidCutError`` for anything else; allocates no more than 16 MiB."""
        try:
            packed = base64.b64decode(text, validate=True)
            unzip = zlib.decompressobj(wbits=31)
            body = unzip.decompress(packed, _TEXT_MAX)
            if unzip.unconsumed_tail:
                raise InvalidCutError("stream cut is too large", limit_bytes=_TEXT_MAX)
            version, name, numbers, epochs, offsets = body.decode().split(":")
            if version != "0":
                raise InvalidCutError("stream cut has an unknown version", version=version[:8])
            if not numbers:
                return cls(StreamName.parse(name), {})
            columns = [[int(item) for item in column.split(",")] for column in (numbers, epochs, offsets)]
            positions = {make_segment_id(epoch, number): offset for number, epoch, offset in zip(*columns, strict=True)}
            return cls(StreamName.parse(name), positions)
        except (ValueError, zlib.error, InvalidNameError) as error:
            raise InvalidCutError("text is not a stream cut", text=text[:60]) from error

    @property
    def is_unbounded(self) -> bool:
        """Whether the cut has no positions: the beginning or the end of any stream."""
        return not self.positions
