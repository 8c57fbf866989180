"""Find facts and divide them among tasks: files of JSON Lines, and Parquet as in docs/formats/fleet.md."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.model.errors import CorruptDataError, InvalidArgumentError
from penstock.model.values.dataclass import dataclass

SHARE_ROWS = 32_768
SHARE_BYTES = 16 << 20
LINE_MAX = 64 << 20  # bytes; facts of one stream, with room for 10,000 segments and their boundaries
_LINES = (".jsonl", ".ndjson", ".json")
_PACKED = (".jsonl.gz", ".ndjson.gz")
_TABLE = ".parquet"
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The input of one task: row groups ``start`` to ``end`` of a table, or a byte range of lines (``None``: to the end).

    ``first``: the number of its first row or line in the file, counted from 1. ``rows``: their number, None if unknown.
    """

    source: str
    table: bool
    start: int
    end: int | None
    first: int
    rows: int | None


def find(sources: Sequence[str | Path]) -> list[Path]:
    """The files of facts, in order. Includes subdirectories; skips names that begin with ``_`` or ``.``.

    Raises InvalidArgumentError if a file does not exist or a directory has no facts.
    """
    found: list[Path] = []
    for source in sources:
        path = Path(source)
        if path.is_dir():
            inside = sorted(item for item in path.rglob("*") if _is_facts(item, path))
            if not inside:
                raise InvalidArgumentError(
                    "directory holds no facts: neither .jsonl, .jsonl.gz nor .parquet", facts=str(source)
                )
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise InvalidArgumentError("no such file or directory of facts", facts=str(source))
    if not found:
        raise InvalidArgumentError("name at least one file of facts")
    return [path.absolute() for path in found]


def _is_facts(path: Path, below: Path) -> bool:
    hidden = any(part.startswith(("_", ".")) for part in path.relative_to(below).parts)
    return not hidden and path.is_file() and path.name.endswith((*_LINES, *_PACKED, _TABLE))


def shares(files: Sequence[Path]) -> list[Share]:
    """Shares of about equal work. Reads each file of lines once, to count them, and the footer of each table.

    Raises: InvalidArgumentError, VersionTooNewError (a table that holds no facts of a known version), CorruptDataError.
    """
    found: list[Share] = []
    for path in files:
        if path.name.endswith(_TABLE):
            found += _table_shares(path)
        elif path.name.endswith(_PACKED):
            found.append(Share(source=str(path), table=False, start=0, end=None, first=1, rows=None))
        else:
            found += _line_shares(path)
    return found


def _table_shares(path: Path) -> Iterator[Share]:
    with open_table(path) as table:
        metadata = table.metadata
        start, first, rows = 0, 1, 0
        for group in range(metadata.num_row_groups):
            rows += metadata.row_group(group).num_rows
            if rows >= SHARE_ROWS or group == metadata.num_row_groups - 1:
                yield Share(source=str(path), table=True, start=start, end=group + 1, first=first, rows=rows)
                start, first, rows = group + 1, first + rows, 0


def open_table(path: str | Path) -> Any:
    """The file, checked. The caller closes it. Raises as ``shares``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from penstock.spark.fleet.layout import check_schema

    try:
        table = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise CorruptDataError("file is not Parquet", facts=str(path), cause=str(error)[:120]) from error
    try:
        check_schema(table.schema_arrow, source=str(path))
    except BaseException:
        table.close()
        raise
    return table


def _line_shares(path: Path) -> Iterator[Share]:
    start = at = 0
    first = 1
    lines = 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            if at + len(block) - start >= SHARE_BYTES and (place := block.rfind(b"\n")) >= 0:
                lines += block.count(b"\n", 0, place + 1)
                end = at + place + 1
                yield Share(source=str(path), table=False, start=start, end=end, first=first, rows=lines)
                start, first, lines = end, first + lines, block.count(b"\n", place + 1)
            else:
                lines += block.count(b"\n")
            at += len(block)
    if at > start:
        yield Share(source=str(path), table=False, start=start, end=at, first=first, rows=lines or 1)


def read_lines(share: Share) -> Iterator[tuple[int, bytes]]:
    """The lines of a share with their numbers, without line ends. A line that is too long is cut one byte above the limit."""
    with _opened(share) as file:
        file.seek(share.start)
        left = None if share.end is None else share.end - share.start
        number = share.first
        while left is None or left > 0:
            line = file.readline(LINE_MAX + 1)
            if not line:
                return
            read = len(line)
            whole = line
            while len(line) > LINE_MAX and not line.endswith(b"\n"):
                line = file.readline(LINE_MAX + 1)
                read += len(line)
                if not line:
                    break
            yield number, whole.rstrip(b"\r\n")
            number += 1
            if left is not None:
                left -= read


def _opened(share: Share) -> Any:
    return gzip.open(share.source, "rb") if share.source.endswith(_PACKED) else Path(share.source).open("rb")
