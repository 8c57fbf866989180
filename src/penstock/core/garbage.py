"""Which chunks are garbage. Only references decide, never a time."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from penstock.codec.chunk_index import SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkName:
    """The parts of a chunk's name: ``<container>/<uid>-<epoch>-<start>[-<attempt>]``, numbers in hex.

    ``start`` is the offset at which the chunk began in the segment ``uid`` that wrote it; ``attempt`` tells a chunk from
    one that was abandoned after a failed write at the same place.
    """

    container: int
    uid: int
    epoch: int
    start: int
    attempt: int = 0

    def __str__(self) -> str:
        text = f"{self.container:x}/{self.uid:x}-{self.epoch:x}-{self.start:x}"
        return f"{text}-{self.attempt:x}" if self.attempt else text


def parse_chunk_name(text: str) -> ChunkName | None:
    """The parts, or None for what is not spelled as we spell it."""
    container, _, rest = text.partition("/")
    parts = rest.split("-")
    if not 3 <= len(parts) <= 4:
        return None
    try:
        numbers = [int(part, 16) for part in parts]
        name = ChunkName(
            container=int(container, 16),
            uid=numbers[0],
            epoch=numbers[1],
            start=numbers[2],
            attempt=numbers[3] if len(numbers) == 4 else 0,
        )
    except ValueError:
        return None
    return name if str(name) == text else None


def orphan_candidates(listed: Iterable[str], *, container: int, epoch: int) -> Sequence[str]:
    """The listed chunks of this container that an earlier epoch wrote, without their sidecars, in order.

    Chunks of the own epoch are followed in memory; those of a later epoch belong to someone else. A sidecar without its
    chunk counts as the chunk's name: deleting a name deletes both.
    """
    found: dict[str, None] = {}
    for text in listed:
        base = text.removesuffix(SUFFIX)
        name = parse_chunk_name(base)
        if name is not None and name.container == container and name.epoch < epoch:
            found[base] = None
    return list(found)


def orphans(candidates: Sequence[str], *referenced: Container[str]) -> Sequence[str]:
    """The candidates that nothing names."""
    return [name for name in candidates if not any(name in names for names in referenced)]
