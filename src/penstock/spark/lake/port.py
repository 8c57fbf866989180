"""A table whose commits carry the cut of the stream that they end at. Source: docs/design/0045-lake-tables.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from penstock.model.errors import ConflictError
from penstock.model.values.dataclass import dataclass
from penstock.spark.lake.place import Place

FORMATS = ("delta", "iceberg", "parquet")
KEY, SEGMENT, OFFSET, APPEND_TIME = "key", "segment_id", "offset", "append_time"
POSITION = (SEGMENT, OFFSET, APPEND_TIME)
"""The columns that every table has. Erasures find rows by the first two."""
DATE, HOUR = "date", "hour"
"""Columns of partitions, in formats that name partitions by columns."""

PERIODS: Mapping[str | None, tuple[str, ...]] = {None: (), "day": (DATE,), "hour": (DATE, HOUR)}
"""By period, the columns of its partitions."""

OWN_PREFIX = "_penstock/"
"""Directory of what is no data file. Readers of Parquet pass over names that begin with an underscore."""

COMMIT_TRIES = 8
"""Commits of other writers that may be first."""

T = TypeVar("T")
_NAME = re.compile(r"penstock-(\d{12})-")


class TableMovedError(ConflictError):
    """Another commit to the table came first, and nothing was committed. Read its state again, and repeat the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """What the runs of one table have in common.

    stream: ``scope/stream``. subscriber: the name under which the table holds the stream.
    schema: DDL of the columns of JSON events; None: the table has the binary column ``event``.
    partition: ``day``, ``hour`` or None; of the timestamp in the column ``time``.
    key: an expression; the table has the latest event of each key, in the column ``key`` too. None: all events.
    delete_when: a condition; an event for which it is true deletes its key.
    event_format: ``record``: the events are records; None: they are plain.
    """

    stream: str
    subscriber: str
    schema: str | None = None
    partition: str | None = None
    time: str = APPEND_TIME
    key: str | None = None
    delete_when: str | None = None
    event_format: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values, with the version of their meaning."""
        names = ("stream", "subscriber", "schema", "partition", "time", "key", "delete_when", "event_format")
        return {"version": 1, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The last commit of a table: its number, the cut up to which the table has its stream, and its definition."""

    sequence: int
    cut: str
    definition: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file of a table. ``path`` is relative to the table; ``partition``: its values by name."""

    path: str
    size_bytes: int
    rows: int
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a commit does: it adds and removes files, and moves the table to ``cut``, all or nothing.

    ``is_rearranged``: the rows stay the same. ``erasure``: record that this erasure has been applied to the table.
    """

    cut: str
    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    is_rearranged: bool = False
    erasure: str | None = None


class CommittedTable(Protocol):
    """A table that one job at a time writes. All its formats obey these laws.

    * A commit is complete or has no effect, for readers and after a crash. Only a commit moves the cut.
    * A commit has an effect only if its base is the last commit of Penstock. Commits of other writers may come between,
      unless they removed a file that this commit removes. A rollback ends its base, even if a later commit has the number.
    * After ``commit`` returned, its files and its cut survive a power failure, as far as the disk or store keeps them.
      ``state`` may show a commit whose process died before that: only after ``settle`` may its cut be published.
    * ``forget`` deletes each file that neither the current version has nor a later commit can add.
    """

    @property
    def place(self) -> Place:
        """Where the files are."""

    @property
    def data_prefix(self) -> str:
        """Directory of new files, relative to ``place``: empty, or with a slash at the end."""

    @property
    def names_partitions(self) -> bool:
        """Whether partitions are columns ``date`` and ``hour`` that files lack. If not, the format derives them."""

    def state(self) -> TableState | None:
        """The last commit of Penstock, or None if there is no table. Raises AlreadyExistsError if there is something else."""

    def create(self, definition: TableDefinition, schema: pa.Schema, cut: str) -> TableState:
        """Create the empty table. Raises TableMovedError if another run did, InvalidArgumentError for a type that the format
        lacks, UnsupportedError if the store has no conditional writes."""

    def commit(self, base: TableState, change: Change) -> TableState:
        """Commit after ``base``. Raises TableMovedError if another commit came between; nothing has changed then."""

    def settle(self) -> None:
        """Make the last commit durable, and delete what it replaced where the format does so: its process may have died
        before it did. May be repeated. Does nothing if there is no table."""

    def files(self) -> Sequence[DataFile]:
        """Files of the current version. Raises UnsupportedError if another writer marked rows as deleted beside them."""

    def read(self) -> pa.Table:
        """Rows of the current version."""

    def is_applied(self, erasure: str) -> bool:
        """Whether a commit has recorded the erasure."""

    def forget(self) -> int:
        """End all versions but the current one, and delete their files. Returns how many files were deleted."""


def file_name(sequence: int, token: str, number: int) -> str:
    """Name of a data file that commit ``sequence`` may add. ``token`` tells attempts apart."""
    return f"{file_name_of_run(sequence, token)}-{number:03d}.parquet"


def file_name_of_run(sequence: int, run: str) -> str:
    """How the names of the files begin whose tokens begin with ``run``."""
    return f"penstock-{sequence:012d}-{run}"


def is_leftover(path: str, *, sequence: int) -> bool:
    """Whether no commit can add this file any more, if the table does not have it. ``sequence``: of the last commit."""
    found = _NAME.match(path.rpartition("/")[2])
    return found is not None and int(found[1]) <= sequence


def commit_after(
    base: TableState,
    change: Change,
    *,
    name: str,
    open_table: Callable[[], T | None],
    state_of: Callable[[T], TableState],
    files_of: Callable[[T], Sequence[DataFile]],
    send: Callable[[T, TableState], bool],
) -> TableState:
    """Commit to a table whose log decides between writers; the rules of ``CommittedTable.commit``. Returns the new state.

    ``send`` returns False if another writer was first, or the answer was lost: then the table is read again.
    Raises TableMovedError.
    """
    state = TableState(sequence=base.sequence + 1, cut=change.cut, definition=base.definition)
    for tries in range(COMMIT_TRIES):
        table = open_table()
        now = None if table is None else state_of(table)
        if table is not None and tries and is_own(change, state, now, files_of(table)):
            return state
        check_base(base, now, name)
        if table is None:
            break
        check_removed(change, files_of(table) if change.removed else (), name)
        if send(table, state):
            return state
    raise TableMovedError(
        "other writers commit to this table all the time; nothing was committed: run again", table=name
    )


def check_base(base: TableState, now: TableState | None, table: str) -> None:
    """Return if ``base`` is the last commit. Raises TableMovedError."""
    # After a rollback, or if the table was dropped and created again, another commit can have the same number.
    if now != base:
        raise base_moved(now, table, expected=base.sequence)


def is_own(change: Change, state: TableState, now: TableState | None, current: Sequence[DataFile]) -> bool:
    """Whether the last commit is that of this change, whose answer was lost. ``state``: what the change makes.

    Names of files are unique, so only a change that adds files can be recognized.
    """
    return bool(change.added) and now == state and {item.path for item in change.added} <= {f.path for f in current}


def base_moved(now: TableState | None, table: str, *, expected: int) -> TableMovedError:
    """The error of a commit whose base, the commit ``expected``, is not the last one."""
    return TableMovedError(
        "another run has committed to this table; nothing was committed: stop one of the runs, and run again",
        table=table,
        expected=expected,
        found=None if now is None else now.sequence,
    )


def check_removed(change: Change, current: Sequence[DataFile], table: str) -> None:
    """Return if the table has every file that the change removes. Raises TableMovedError."""
    known = {file.path for file in current}
    missing = [file.path for file in change.removed if file.path not in known]
    if missing:
        raise TableMovedError(
            "another writer has replaced files of this table; nothing was committed: run again",
            table=table,
            file=missing[0],
        )
