"""A table of Delta Lake. Its cut is in transaction identifiers, which the log keeps when it deletes old entries.

Delta's log has numbers by the name of an application. ``penstock`` has the number of the commit, ``penstock.cut`` that of the
cut's segments, and ``penstock.cut.<i>.segment`` and ``penstock.cut.<i>.offset`` the position in each. All of them are set by
the commit that adds the files, and the log refuses a commit if another one has set them since.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.model.cuts import StreamCut
from penstock.model.errors import AlreadyExistsError, ConflictError, InvalidArgumentError, UnsupportedError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.spark.lake.place import Place
from penstock.spark.lake.port import (
    DATE,
    HOUR,
    OFFSET,
    OWN_PREFIX,
    PERIODS,
    SEGMENT,
    Change,
    DataFile,
    TableDefinition,
    TableMovedError,
    TableState,
    commit_after,
    is_leftover,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable as Table

_APP = "penstock"
_LOG = "_delta_log/"
_PARTITION_FIELDS = {DATE: pa.field(DATE, pa.date32()), HOUR: pa.field(HOUR, pa.int32())}


class DeltaLakeTable:
    """Implements ``port.CommittedTable`` with the package ``deltalake``."""

    data_prefix = ""
    names_partitions = True

    def __init__(self, place: Place) -> None:
        self._place = place
        self._options = dict(place.options)

    @property
    def place(self) -> Place:
        return self._place

    def state(self) -> TableState | None:
        table = self._open()
        if table is None:
            strange = [path for path in self._place.paths() if not path.startswith(OWN_PREFIX)]
            if strange:
                raise AlreadyExistsError(
                    "the directory is not empty and is not a Delta table; name another",
                    table=self._place.url,
                    file=strange[0],
                )
            return None
        return self._state_of(table)

    def create(self, definition: TableDefinition, schema: pa.Schema, cut: str) -> TableState:
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import create_table_with_add_actions

        self._place.check_conditional()
        state = TableState(sequence=1, cut=cut, definition=definition.as_json())
        columns = list(PERIODS[definition.partition])
        whole = pa.schema([*schema, *(_PARTITION_FIELDS[name] for name in columns)])
        try:
            create_table_with_add_actions(
                self._place.url,
                Schema.from_arrow(whole),
                [],
                mode="error",
                partition_by=columns,
                description=json.dumps(state.definition),
                # Statistics of the others would put values of events into the log, where an erasure cannot reach them.
                configuration={"delta.dataSkippingStatsColumns": f"{SEGMENT},{OFFSET}"},
                storage_options=self._options,
                commit_properties=_properties(state, None),
            )
        except (CommitFailedError, DeltaError) as error:
            if self._open() is not None:
                raise TableMovedError(
                    "another run has just created this table; run again", table=self._place.url
                ) from None
            raise InvalidArgumentError(f"Delta Lake refuses the table: {error}", table=self._place.url) from error
        self.settle()
        return state

    def commit(self, base: TableState, change: Change) -> TableState:
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError

        def send(table: Table, state: TableState) -> bool:
            try:
                table.create_write_transaction(
                    list(_actions(change)),
                    "append",
                    Schema.from_arrow(table.schema()),
                    partition_by=table.metadata().partition_columns,
                    commit_properties=_properties(state, change.erasure),
                )
            except CommitFailedError:
                return False
            return True

        state = commit_after(
            base,
            change,
            name=self._place.url,
            open_table=self._open,
            state_of=self._state_of,
            files_of=self._files_of,
            send=send,
        )
        self._sync()
        return state

    def settle(self) -> None:
        self._place.sync_name()
        self._sync()

    def files(self) -> Sequence[DataFile]:
        table = self._open()
        return [] if table is None else self._files_of(table)

    def read(self) -> pa.Table:
        table = self._open()
        return pa.table({}) if table is None else table.to_pyarrow_table()

    def is_applied(self, erasure: str) -> bool:
        table = self._open()
        return table is not None and table.transaction_version(f"{_APP}.erasure.{erasure}") is not None

    def forget(self) -> int:
        table = self._open()
        if table is None:
            return 0
        sequence = self._state_of(table).sequence
        old = table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        named = {file.path for file in self._files_of(table)}
        left = [path for path in self._place.paths() if path not in named and is_leftover(path, sequence=sequence)]
        return self._place.delete([*old, *left])  # what is deleted already, too: only this makes it durable

    def _open(self) -> Table | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        directory = self._place.directory
        if directory is not None and not directory.is_dir():
            return None
        try:
            return DeltaTable(self._place.url, storage_options=self._options)
        except TableNotFoundError:
            return None

    def _state_of(self, table: Table) -> TableState:
        sequence = table.transaction_version(_APP)
        if sequence is None:
            raise AlreadyExistsError(
                "the Delta table was not made by a job of Penstock; name another", table=self._place.url
            )
        definition = _definition(table)
        marked = self._unrestored(table)
        positions = {}
        for number in range(_number(marked, f"{_APP}.cut")):
            segment = _number(marked, f"{_APP}.cut.{number}.segment")
            positions[SegmentId(segment)] = _number(marked, f"{_APP}.cut.{number}.offset")
        scope, _, stream = definition["stream"].partition("/")
        cut = StreamCut(StreamName(scope, stream), positions)
        return TableState(sequence=sequence, cut=cut.to_text(), definition=definition)

    def _unrestored(self, table: Table) -> Table:
        """The version whose cut counts: the one that a RESTORE since our last commit has gone back to, or the table."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        for version in range(table.version(), -1, -1):  # mostly the last entry is ours
            found = self._commit_info(version)
            if found is None or f"{_APP}.cut" in found:
                break
            if found.get("operation") == "RESTORE":
                target = found.get("operationParameters", {}).get("version")
                try:
                    earlier = DeltaTable(self._place.url, version=int(target), storage_options=self._options)
                except (DeltaError, TypeError, ValueError) as error:
                    raise ConflictError(
                        "the table was restored to an earlier version whose cut cannot be read; restore it by "
                        "version, to one that the log still has, or append to a new table",
                        table=self._place.url,
                        version=target,
                    ) from error
                return self._unrestored(earlier)
        return table

    def _commit_info(self, version: int) -> Mapping[str, Any] | None:
        """What the writer of a version has noted. None if its entry of the log was deleted."""
        try:
            text = self._place.read(f"{_LOG}{version:020d}.json")
        except FileNotFoundError:
            return None
        for line in text.splitlines():
            if b'"commitInfo"' in line and isinstance(found := json.loads(line).get("commitInfo"), dict):
                return found
        return {}

    def _files_of(self, table: Table) -> list[DataFile]:
        rows = pa.table(table.get_add_actions(flatten=True))
        if table.protocol().min_reader_version >= 3 and table.deletion_vectors().read_all().num_rows:
            raise UnsupportedError(
                "the table has rows that another writer marked as deleted (deletion vectors); purge them first "
                "(REORG TABLE … APPLY (PURGE))",
                table=self._place.url,
            )
        names = table.metadata().partition_columns
        return [
            DataFile(
                path=row["path"],
                size_bytes=row["size_bytes"],
                rows=row["num_records"] or 0,
                partition={
                    name: None if row[f"partition.{name}"] is None else str(row[f"partition.{name}"]) for name in names
                },
            )
            for row in rows.to_pylist()
        ]

    def _sync(self) -> None:
        # The log's library leaves durability to the system. Retention may free what we report as committed.
        self._place.sync_all(_LOG)


def _definition(table: Table) -> dict[str, Any]:
    try:
        found = json.loads(table.metadata().description or "")
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("stream"), str):
        raise ConflictError(
            "the description of the Delta table was changed, and the job has its options there; set the old description "
            "again: the first entry of the table's log has it",
            table=table.table_uri,
        )
    return found


def _number(table: Table, name: str) -> int:
    found = table.transaction_version(name)
    if found is None:
        raise ConflictError("the table has lost a part of its cut", table=table.table_uri, name=name)
    return found


def _properties(state: TableState, erasure: str | None) -> Any:
    from deltalake.transaction import CommitProperties, Transaction

    numbers = {_APP: state.sequence}
    positions = StreamCut.from_text(state.cut).positions
    numbers[f"{_APP}.cut"] = len(positions)
    for number, (segment, offset) in enumerate(sorted(positions.items())):
        numbers[f"{_APP}.cut.{number}.segment"] = segment
        numbers[f"{_APP}.cut.{number}.offset"] = offset
    if erasure is not None:
        numbers[f"{_APP}.erasure.{erasure}"] = state.sequence
    return CommitProperties(
        custom_metadata={f"{_APP}.cut": state.cut, f"{_APP}.sequence": str(state.sequence)},
        max_commit_retries=0,
        app_transactions=[Transaction(name, value) for name, value in numbers.items()],
    )


def _actions(change: Change) -> Iterator[Any]:
    from deltalake.transaction import AddAction, RemoveAction

    at_ms = time.time_ns() // 1_000_000  # readers of older versions count the time that their files stay from here
    for file in change.added:
        yield AddAction(
            file.path,
            file.size_bytes,
            dict(file.partition),
            at_ms,
            not change.is_rearranged,
            json.dumps({"numRecords": file.rows}),
        )
    for file in change.removed:
        yield RemoveAction(
            file.path, not change.is_rearranged, at_ms, size=file.size_bytes, partition_values=dict(file.partition)
        )
