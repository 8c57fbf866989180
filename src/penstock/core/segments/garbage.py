"""Which chunks are garbage. Only references decide, never a time."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from penstock.codec.store.chunk_index import SUFFIX
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkName:
    """The parts of a chunk's name: ``<container>/<uid>-<epoch>-<start>[-<attempt>]``, numbers in hex.

    ``start`` is the offset at which the chunk began in the segment ``uid`` that wrote it; ``attempt`` tells a chunk
    from one that was abandoned after a failed write at the same place.
    """

    container: int
    uid: int
    epoch: int
    start: int
    attempt: int = 0

    def __str__(self) -> str:
        text = f"{self.container:x}/{self.uid:x}-{self.epoch:x}-{self.start:x}"
        return f"{text}-{self.attempt:x}" if self.attempt else text


def gap_name(container: int, source: int) -> ChunkName:
    """Name of the chunk that represents the bytes merged from a segment with damaged metadata. It is never written."""
    return ChunkName(container=container, uid=source, epoch=0, start=0)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportName:
    """The parts of an imported chunk's name: ``<container>/i<uid>-<epoch>-<grant>-<number>``, numbers in hex.

    ``uid`` is that of the transaction's segment for which it was written. While that segment exists, the chunk may be
    adopted. ``grant`` is the number of the grant in ``epoch``.
    """

    container: int
    uid: int
    epoch: int
    grant: int
    number: int

    @property
    def prefix(self) -> str:
        """The name without its number: the same for all chunks of a grant."""
        return f"{self.container:x}/i{self.uid:x}-{self.epoch:x}-{self.grant:x}-"

    def __str__(self) -> str:
        return f"{self.prefix}{self.number:x}"


def parse_import_name(text: str) -> ImportName | None:
    """The parts, or None for what is not spelled as we spell it."""
    container, _, rest = text.partition("/i")
    parts = [container, *rest.split("-")]
    if len(parts) != 5:
        return None
    try:
        numbers = [int(part, 16) for part in parts]
    except ValueError:
        return None
    name = ImportName(container=numbers[0], uid=numbers[1], epoch=numbers[2], grant=numbers[3], number=numbers[4])
    return name if str(name) == text else None


def is_marker(text: str) -> bool:
    """Whether the name is that of the marker by which importers recognize a tier 2. It is not a chunk."""
    name = parse_import_name(text)
    return name is not None and name.uid == 0


def chunk_epoch(text: str) -> int | None:
    """The log epoch in which the name of a chunk, written or imported, was made. None for any other name."""
    name = parse_chunk_name(text) or parse_import_name(text)
    return None if name is None else name.epoch


def imports_listed(listed: Iterable[str], *, container: int) -> Mapping[int, Sequence[ImportName]]:
    """The imported chunks of this container among the listed names, by the uid that they were written for, in order.

    A sidecar without its chunk counts as its chunk.
    """
    found: dict[int, dict[ImportName, None]] = {}
    for text in listed:
        name = parse_import_name(text.removesuffix(SUFFIX))
        if name is not None and name.container == container:
            found.setdefault(name.uid, {})[name] = None
    return {uid: list(names) for uid, names in found.items()}


def orphan_candidates(listed: Iterable[str], *, container: int, epoch: int) -> Sequence[str]:
    """The listed chunks of this container that an earlier epoch wrote, without their sidecars, in order.

    The store tracks chunks of its own epoch in memory; those of a later epoch belong to another store. A sidecar
    without its chunk counts as the chunk's name: deleting a name deletes both.
    """
    found: dict[str, None] = {}
    for text in listed:
        base = text.removesuffix(SUFFIX)
        name = parse_chunk_name(base)
        if name is not None and name.container == container and name.epoch < epoch:
            found[base] = None
    return list(found)


def orphans(candidates: Sequence[str], *referenced: Container[str]) -> Sequence[str]:
    """The candidates without a reference."""
    return [name for name in candidates if not any(name in names for names in referenced)]
