"""Erasure on files: lists of values and positions that people write, and the search for values in a store's files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

VALUES_MAX = 1_000_000  # values of one erasure; their set stays in memory
_SCANNED_MAX = 10_000  # values searched as bytes, each of which costs a pass over every file
_WINDOW_BYTES = 8 << 20  # how much of a searched file is in memory at once
_VALUE_MIN = 4  # bytes; shorter values occur in files by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A value in a file: the line of the list that it is on, never the value."""

    file: str
    position: int
    value: int


def values_from(path: Path) -> dict[str, int]:
    """The values in the file, one per line and in order, each with the number of its first line. Skips empty lines.

    Raises InvalidArgumentError, OSError.
    """
    values: dict[str, int] = {}
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            values.setdefault(line, number)
    if not values:
        raise InvalidArgumentError("the file holds no values; write one per line", file=str(path))
    if len(values) > VALUES_MAX:
        raise InvalidArgumentError(
            "too many values for one erasure; split the file into several", values=len(values), limit=VALUES_MAX
        )
    return values


def positions_from(path: Path) -> list[tuple[int, int]]:
    """Segment and offset of each event, one ``SEGMENT:OFFSET`` a line. Raises InvalidArgumentError, OSError."""
    found: list[tuple[int, int]] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        segment, colon, offset = line.strip().partition(":")
        if not (colon and segment.isdecimal() and offset.isdecimal()):
            raise InvalidArgumentError(
                "line is not a position; write SEGMENT:OFFSET, such as 3:1024",
                file=str(path),
                line=number,
                text=line[:60],
            )
        found.append((int(segment), int(offset)))
    if not found:
        raise InvalidArgumentError("the file holds no positions; write one SEGMENT:OFFSET per line", file=str(path))
    return found


def _lines(path: Path) -> list[str]:
    try:
        # Some editors begin a file with a byte order mark, which is no part of the first value.
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            "the file is not UTF-8; save it as UTF-8", file=str(path), position=error.start
        ) from error
    # Not ``splitlines``, which splits at a dozen characters. It would cut a value in two.
    return [line.removesuffix("\r") for line in text.split("\n")]


def find_values(
    directory: Path, values: Mapping[str, int], *, progress: Callable[[int, int], None] | None = None
) -> Iterator[Finding]:
    """Search all files below the directory for the UTF-8 bytes of the values, which are given with their lines. Returns the
    first position of each value in each file.

    All files are read in full: chunks, sidecars, log files, spare ones, the catalogue, the metadata. A file that is
    deleted meanwhile is skipped. ``progress`` is called with files and bytes so far. Raises InvalidArgumentError (a
    value that is too short, or too many values), OSError.
    """
    wanted = [(line, value.encode()) for value, line in values.items()]
    if len(wanted) > _SCANNED_MAX:
        raise InvalidArgumentError("too many values to look for in files", values=len(wanted), limit=_SCANNED_MAX)
    short = next((line for line, value in wanted if len(value) < _VALUE_MIN), None)
    if short is not None:
        raise InvalidArgumentError("a value is too short: it would match by chance", line=short, least_bytes=_VALUE_MIN)
    read = 0
    for number, path in enumerate(sorted(path for path in directory.rglob("*") if path.is_file()), 1):
        try:
            with path.open("rb") as file:
                found, size = _first_positions(file, wanted)
        except FileNotFoundError:
            continue
        read += size
        for line, _ in wanted:
            if line in found:
                yield Finding(file=str(path.relative_to(directory)), position=found[line], value=line)
        if progress is not None:
            progress(number, read)


def _first_positions(file: BinaryIO, wanted: Sequence[tuple[int, bytes]]) -> tuple[dict[int, int], int]:
    """The first position of each value, by its line, and the size of the file.

    The file is not mapped: a running store may shorten it meanwhile, and reading the mapping would then kill this process.
    """
    overlap = max((len(value) for _, value in wanted), default=1) - 1
    found: dict[int, int] = {}
    end, kept = 0, b""
    while data := file.read(_WINDOW_BYTES):
        window = kept + data
        start = end - len(kept)
        for line, value in wanted:
            if line not in found and (position := window.find(value)) >= 0:
                found[line] = start + position
        end += len(data)
        kept = window[-overlap:] if overlap else b""
    return found, end
