"""A committed table of plain Parquet: each commit is a small file that names the data files. Source: docs/formats/lake.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from penstock.model.errors import AlreadyExistsError, CorruptDataError, VersionTooNewError
from penstock.spark.lake.place import Place
from penstock.spark.lake.port import (
    OWN_PREFIX,
    Change,
    DataFile,
    TableDefinition,
    TableMovedError,
    TableState,
    base_moved,
    check_base,
    check_removed,
    is_leftover,
)
from penstock.spark.lake.rows import read_rows, with_partition

VERSION = 1
_COMMITS = f"{OWN_PREFIX}commits/"
_KEPT = 3
"""Commits that are kept. A reader that has listed them still finds the newest one for two commits."""


class ParquetTable:
    """Implements ``port.CommittedTable``. The commit with the highest number is the table."""

    data_prefix = ""
    names_partitions = True

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def place(self) -> Place:
        return self._place

    def state(self) -> TableState | None:
        numbers = self._numbers()
        if not numbers:
            strange = [path for path in self._place.paths() if not path.startswith(OWN_PREFIX)]
            if strange:
                raise AlreadyExistsError(
                    "the directory is not empty and is not a table; choose another",
                    table=self._place.url,
                    file=strange[0],
                )
            return None
        return _state(self._commit(numbers[-1]))

    def create(self, definition: TableDefinition, schema: pa.Schema, cut: str) -> TableState:
        self._place.check_conditional()
        state = TableState(sequence=1, cut=cut, definition=definition.as_json())
        text = schema.serialize().to_pybytes().hex()
        self._put(state, {"schema": text, "files": [], "erasures": []}, expected=0)
        self._place.sync_name()
        return state

    def commit(self, base: TableState, change: Change) -> TableState:
        now = self.state()
        check_base(base, now, self._place.url)
        found = self._commit(base.sequence)
        files = _files(found)
        check_removed(change, files, self._place.url)
        gone = {file.path for file in change.removed}
        kept = [file for file in files if file.path not in gone] + list(change.added)
        erasures = [*found["erasures"], *([] if change.erasure is None else [change.erasure])]
        state = TableState(sequence=base.sequence + 1, cut=change.cut, definition=base.definition)
        more = {"schema": found["schema"], "files": [asdict(file) for file in kept], "erasures": erasures}
        self._put(state, more, expected=base.sequence)
        self._finish(kept, state.sequence)
        return state

    def settle(self) -> None:
        numbers = self._numbers()
        if numbers:
            self._place.sync_name()
            self._place.sync_all(_COMMITS)
            self._finish(_files(self._commit(numbers[-1])), numbers[-1])

    def files(self) -> Sequence[DataFile]:
        numbers = self._numbers()
        return _files(self._commit(numbers[-1])) if numbers else []

    def read(self) -> pa.Table:
        found = self._commit(self._numbers()[-1])
        tables = [with_partition(read_rows(self._place, file), file) for file in _files(found)]
        return pa.concat_tables(tables) if tables else _schema(found).empty_table()

    def is_applied(self, erasure: str) -> bool:
        numbers = self._numbers()
        return bool(numbers) and erasure in self._commit(numbers[-1])["erasures"]

    def forget(self) -> int:
        numbers = self._numbers()
        self._drop_commits(keep=1)
        return self._sweep(_files(self._commit(numbers[-1])), numbers[-1])

    def _numbers(self) -> list[int]:
        names = [path.removeprefix(_COMMITS) for path in self._place.paths(_COMMITS)]
        return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal())

    def _commit(self, number: int) -> dict[str, Any]:
        path = f"{_COMMITS}{number:012d}.json"
        try:
            found = json.loads(self._place.read(path))
            version = int(found["version"])
        except FileNotFoundError:
            raise TableMovedError(
                "another run committed to the table meanwhile; run again", table=self._place.url
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError("a commit of the table cannot be read", table=self._place.url, file=path) from error
        if version > VERSION:
            raise VersionTooNewError(
                "the table was written by a newer version", table=self._place.url, version=version, known=VERSION
            )
        return dict(found)

    def _put(self, state: TableState, more: dict[str, Any], *, expected: int) -> None:
        path = f"{_COMMITS}{state.sequence:012d}.json"
        text = json.dumps({"version": VERSION, **asdict(state), **more})
        is_first = self._place.put_new(path, text.encode())
        # An old number may be free again, because old commits are deleted. Then a later one exists, and it wins.
        # A store may have written the commit, lost the answer, and repeated the request: then the commit is there.
        is_ours = is_first or (bool(more["files"]) and self._place.read(path) == text.encode())
        if not is_ours or self._numbers()[-1] != state.sequence:
            raise base_moved(self.state(), self._place.url, expected=expected)

    def _finish(self, files: Sequence[DataFile], sequence: int) -> None:
        self._drop_commits(keep=_KEPT)
        # Readers of Parquet take every file of the directory: what the commit replaced would count twice.
        self._sweep(files, sequence)

    def _sweep(self, files: Sequence[DataFile], sequence: int) -> int:
        named = {file.path for file in files}
        left = [path for path in self._place.paths() if path not in named and is_leftover(path, sequence=sequence)]
        return self._place.delete(left)

    def _drop_commits(self, *, keep: int) -> None:
        self._place.delete(f"{_COMMITS}{number:012d}.json" for number in self._numbers()[:-keep])


def _state(found: dict[str, Any]) -> TableState:
    return TableState(sequence=found["sequence"], cut=found["cut"], definition=found["definition"])


def _files(found: dict[str, Any]) -> list[DataFile]:
    return [DataFile(**item) for item in found["files"]]


def _schema(found: dict[str, Any]) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(found["schema"])))
