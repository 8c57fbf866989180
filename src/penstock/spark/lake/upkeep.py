"""Rewrite files of a table: merge small ones, or drop erased rows. Source: docs/design/0045-lake-tables.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.errors import NotFoundError
from penstock.model.values.dataclass import dataclass
from penstock.spark.lake.place import Place
from penstock.spark.lake.port import KEY, OFFSET, SEGMENT, Change, CommittedTable, DataFile, TableState
from penstock.spark.lake.rows import FilePlan, RowWriter, read_rows

Erased: TypeAlias = Mapping[int, Sequence[int]]
"""The offsets at which erased events begin, by segment."""

Rewritten: TypeAlias = "Sequence[DataFile] | None"
"""The files that replace a group. None: the group stays."""

Runner: TypeAlias = "Callable[[Rewrite, Sequence[Sequence[DataFile]]], Sequence[Rewritten]]"
"""Rewrites groups of files, here or on executors. Results in the order of the groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Writes the rows of a group of files to one file, without some of them. Plain values, for tasks.

    ``erased``: drop the rows of these events; ``keys``: drop the rows of these keys. A group without such rows stays. If
    both are None, each group is rewritten.
    """

    place: Place
    sequence: int
    erased: Erased | None = None
    keys: frozenset[str] | None = None

    def __call__(self, group: Sequence[DataFile]) -> Rewritten:
        """The new files of the group, which has files of one partition."""
        columns = self._columns()
        if columns and not any(self._dropped(read_rows(self.place, file, columns)).any() for file in group):
            return None
        prefix = group[0].path[: group[0].path.rfind("/") + 1]
        # Rows that compress well would become several small files, which the next compaction would merge again, and so on.
        plan = FilePlan(place=self.place, prefix=prefix, sequence=self.sequence, partition=None, time="", splits=False)
        with RowWriter(plan) as writer:
            for file in group:
                rows = read_rows(self.place, file)
                kept = rows.filter(pa.array(~self._dropped(rows))) if columns else rows
                if kept.num_rows:
                    writer.add_to((), kept)
            return [replace(file, partition=group[0].partition) for file in writer.close()]

    def _columns(self) -> list[str]:
        """The columns that decide which rows are dropped; none if no row is."""
        return [*([] if self.erased is None else [SEGMENT, OFFSET]), *([] if self.keys is None else [KEY])]

    def _dropped(self, rows: pa.Table) -> np.ndarray:
        found = np.zeros(rows.num_rows, bool)
        if self.erased is not None:
            found |= _is_erased(rows, self.erased)
        if self.keys is not None:
            found |= pc.is_in(rows.column(KEY), value_set=pa.array(sorted(self.keys), pa.string())).to_numpy()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What was done to a table: files removed and added by a commit, files deleted from the store, and rows dropped."""

    state: TableState
    removed: int = 0
    added: int = 0
    deleted: int = 0
    rows: int = 0


def run_here(work: Rewrite, groups: Sequence[Sequence[DataFile]]) -> Sequence[Rewritten]:
    """Rewrite in this process, one group after another."""
    return [work(group) for group in groups]


def small_groups(files: Sequence[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Groups of files to merge: of one partition, each below half the target, together at most the target."""
    groups: list[list[DataFile]] = []
    by_partition: dict[tuple[tuple[str, str | None], ...], list[DataFile]] = {}
    for file in files:
        if file.size_bytes < target_bytes // 2:
            # Files of other directories, too: another writer may keep one partition in several.
            by_partition.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    for same in by_partition.values():
        group: list[DataFile] = []
        size = 0
        for file in sorted(same, key=lambda item: item.path):
            if group and size + file.size_bytes > target_bytes:
                groups.append(group)
                group, size = [], 0
            group.append(file)
            size += file.size_bytes
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def compact(table: CommittedTable, *, target_bytes: int, run: Runner = run_here) -> Upkeep:
    """Merge small files. Rows and cut stay the same. Old versions keep the old files until ``forget``.

    Raises NotFoundError, ConflictError (another commit came first; nothing has changed).
    """
    state = _state(table)
    groups = small_groups(table.files(), target_bytes)
    if not groups:
        return Upkeep(state=state)
    results = run(Rewrite(place=table.place, sequence=state.sequence + 1), groups)
    added = [file for files in results for file in files or ()]
    removed = [file for group in groups for file in group]
    change = Change(cut=state.cut, added=added, removed=removed, is_rearranged=True)
    return Upkeep(removed=len(removed), added=len(added), state=table.commit(state, change))


def replace_keys(
    table: CommittedTable,
    state: TableState,
    keys: frozenset[str],
    *,
    fresh: Sequence[DataFile],
    cut: str,
    run: Runner = run_here,
) -> TableState:
    """Commit ``fresh`` files in place of all rows of these keys, and move the table to ``cut``. Reads the keys of each file.

    Raises ConflictError (another commit came first; nothing has changed).
    """
    files = table.files() if keys else []
    results = run(Rewrite(place=table.place, sequence=state.sequence + 1, keys=keys), [[file] for file in files])
    removed = [file for file, found in zip(files, results, strict=True) if found is not None]
    added = [file for found in results for file in found or ()]
    return table.commit(state, Change(cut=cut, added=[*added, *fresh], removed=removed))


def erase(table: CommittedTable, erasure: str, erased: Erased, *, run: Runner = run_here) -> Upkeep:
    """Delete the rows of erased events, end all older versions and delete their files, then record the erasure.

    May be repeated after a crash at any point. A run of the job that has read the events but not committed cannot commit
    them later, because a commit came between.

    Raises NotFoundError, ConflictError (another commit came first, or a tag keeps an old version).
    """
    state = _state(table)
    if table.is_applied(erasure):
        table.settle()
        return Upkeep(state=state)
    files = table.files()
    results = run(Rewrite(place=table.place, sequence=state.sequence + 1, erased=erased), [[file] for file in files])
    removed = [file for file, found in zip(files, results, strict=True) if found is not None]
    added = [file for found in results for file in found or ()]
    state = table.commit(state, Change(cut=state.cut, added=added, removed=removed))
    deleted = table.forget()
    state = table.commit(state, Change(cut=state.cut, erasure=erasure))
    rows = sum(file.rows for file in removed) - sum(file.rows for file in added)
    return Upkeep(removed=len(removed), added=len(added), deleted=deleted, rows=rows, state=state)


def _state(table: CommittedTable) -> TableState:
    found = table.state()
    if found is None:
        raise NotFoundError("there is no such table")
    return found


def _is_erased(rows: pa.Table, erased: Erased) -> np.ndarray:
    """For each row, whether its event was erased."""
    segments = rows.column(SEGMENT).to_numpy()
    offsets = rows.column(OFFSET).to_numpy()
    found = np.zeros(rows.num_rows, bool)
    for segment in np.unique(segments):
        wanted = erased.get(int(segment))
        if wanted is not None:
            found |= (segments == segment) & np.isin(offsets, np.asarray(wanted, np.int64))
    return found
