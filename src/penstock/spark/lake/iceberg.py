"""A table of Apache Iceberg. The summary of each snapshot has the cut that the snapshot ends at.

Readers of the cut go from the current snapshot back to the first one of ours, so a rollback also takes the cut back.
Snapshots expire, so the commit sets the same marks as properties of the table. They count only when no snapshot of ours is
left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidArgumentError,
    UnsupportedError,
    missing_extra,
)
from penstock.spark.lake.place import Place, place_of
from penstock.spark.lake.port import (
    POSITION,
    Change,
    DataFile,
    TableDefinition,
    TableMovedError,
    TableState,
    commit_after,
    is_leftover,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_SEQUENCE, _CUT, _DEFINITION, _ERASURE = (
    "penstock.sequence",
    "penstock.cut",
    "penstock.definition",
    "penstock.erasure.",
)
_METADATA = "metadata/"
_STORAGE = {
    "s3.endpoint": "aws_endpoint",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.region": "aws_region",
}
"""Names of a catalog's settings for S3, with obstore's names for the same."""


class IcebergTable:
    """Implements ``port.CommittedTable`` with the package ``pyiceberg``. ``name`` is ``namespace.table``."""

    data_prefix = "data/"
    names_partitions = False

    def __init__(self, catalog: Catalog, name: str) -> None:
        check_table_name(name)
        self._catalog = catalog
        self._name = name
        self._location = ""
        self._found: Place | None = None

    @property
    def place(self) -> Place:
        if self._found is None:
            if self._load() is None:
                raise ConflictError("the table does not exist", table=self._name)
            options = {_STORAGE[key]: str(value) for key, value in self._catalog.properties.items() if key in _STORAGE}
            if options.get("aws_endpoint", "").startswith("http://"):
                options["allow_http"] = "true"
            self._found = place_of(self._location, options if "://" in self._location.removeprefix("file://") else {})
        return self._found

    def state(self) -> TableState | None:
        table = self._load()
        return None if table is None else self._state_of(table)

    def create(self, definition: TableDefinition, schema: pa.Schema, cut: str) -> TableState:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
        from pyiceberg.table import TableProperties
        from pyiceberg.transforms import DayTransform, HourTransform

        state = TableState(sequence=1, cut=cut, definition=definition.as_json())
        properties = {
            **_marks(state),
            _DEFINITION: json.dumps(state.definition),
            # Bounds of the others would put values of events into manifests, where an erasure cannot reach them.
            "write.metadata.metrics.default": "counts",
            **{f"write.metadata.metrics.column.{name}": "full" for name in {*POSITION, definition.time}},
        }
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        try:
            with self._catalog.create_table_transaction(self._name, schema, properties=properties) as work:
                if definition.partition is not None:
                    transform: Any = DayTransform() if definition.partition == "day" else HourTransform()
                    with work.update_spec() as spec:
                        spec.add_field(definition.time, transform, f"{definition.time}_{definition.partition}")
                # The files name columns; the table knows them by number.
                mapping = work.table_metadata.schema().name_mapping.model_dump_json()
                work.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        except (CommitFailedException, TableAlreadyExistsError) as error:
            raise TableMovedError("another run has just created this table; run again", table=self._name) from error
        except (ValueError, TypeError, NotImplementedError) as error:
            raise InvalidArgumentError(f"Iceberg refuses the table: {error}", table=self._name) from error
        self._found = None  # the location of an earlier table of this name
        self.settle()
        return state

    def commit(self, base: TableState, change: Change) -> TableState:
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ValidationException

        def send(table: Table, state: TableState) -> bool:
            # The library would commit again on top of the other commit, which may be one of ours. Only in this process.
            table.properties["commit.retry.num-retries"] = "0"
            try:
                self._send(table, state, change)
            except (CommitFailedException, CommitStateUnknownException, ValidationException):
                return False
            return True

        state = commit_after(
            base,
            change,
            name=self._name,
            open_table=self._load,
            state_of=self._state_of,
            files_of=self._files_of,
            send=send,
        )
        self._sync()
        return state

    def _send(self, table: Table, state: TableState, change: Change) -> None:
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        marks = _marks(state)
        applied = {} if change.erasure is None else {f"{_ERASURE}{change.erasure}": str(state.sequence)}
        with table.transaction() as work:
            work.set_properties({**marks, **applied})
            snapshot = work.update_snapshot(snapshot_properties={**marks, **applied})
            with snapshot.overwrite() if change.removed else snapshot.fast_append() as files:
                for file in change.added:
                    name = self.place.full(file.path)
                    files.append_data_file(parquet_file_to_data_file(table.io, work.table_metadata, name))
                removed = {file.path for file in change.removed}
                if removed:
                    for task in table.scan().plan_files():
                        if self.place.relative(task.file.file_path) in removed:
                            files.delete_data_file(task.file)

    def settle(self) -> None:
        if self._load() is not None:
            self.place.sync_name()
            self._sync()

    def files(self) -> Sequence[DataFile]:
        table = self._load()
        return [] if table is None else self._files_of(table)

    def read(self) -> pa.Table:
        table = self._load()
        return pa.table({}) if table is None else table.scan().to_arrow()

    def is_applied(self, erasure: str) -> bool:
        table = self._load()
        return table is not None and f"{_ERASURE}{erasure}" in table.properties

    def forget(self) -> int:
        table = self._load()
        if table is None:
            return 0
        current = table.current_snapshot()
        kept = None if current is None else current.snapshot_id
        others = [item for item in table.snapshots() if item.snapshot_id != kept]
        held = [name for name, ref in table.refs().items() if ref.snapshot_id != kept]
        if held:
            raise ConflictError(
                "a branch or tag keeps an older version of the table; drop it first", table=self._name, ref=held[0]
            )
        old = {name for item in others for name in _names(table, item)}
        if others:
            table.maintenance.expire_snapshots().by_ids([item.snapshot_id for item in others]).commit()
            self._sync()
        named = set() if current is None else {self.place.relative(name) for name in _names(table, current)}
        sequence = self._state_of(table).sequence
        there = self.place.paths()
        left = {self.place.relative(name) for name in old} & there.keys()
        left |= {path for path in there if is_leftover(path, sequence=sequence)}
        return self.place.delete(sorted(left - named))

    def _load(self) -> Table | None:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None
        if table.location() != self._location:
            # It was dropped and created again, and many catalogs choose a new location then.
            self._location, self._found = table.location(), None
        return table

    def _state_of(self, table: Table) -> TableState:
        definition = table.properties.get(_DEFINITION)
        if definition is None:
            raise AlreadyExistsError(
                "the Iceberg table was not made by a job of Penstock; name another", table=self._name
            )
        marks = self._last_marks(table)
        return TableState(sequence=int(marks[_SEQUENCE]), cut=marks[_CUT], definition=json.loads(definition))

    def _last_marks(self, table: Table) -> Mapping[str, str]:
        snapshot = table.current_snapshot()
        while snapshot is not None:
            found = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if _SEQUENCE in found:
                return found
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        return table.properties

    def _files_of(self, table: Table) -> list[DataFile]:
        found = []
        for task in table.scan().plan_files():
            if task.delete_files:
                raise UnsupportedError(
                    "the table has rows that another writer marked as deleted (delete files); rewrite its data files first",
                    table=self._name,
                )
            spec = table.specs()[task.file.spec_id]
            values = [task.file.partition[place] for place in range(len(spec.fields))]
            names = [item.name for item in spec.fields]
            partition = {name: None if value is None else str(value) for name, value in zip(names, values, strict=True)}
            found.append(
                DataFile(
                    path=self.place.relative(task.file.file_path),
                    size_bytes=task.file.file_size_in_bytes,
                    rows=task.file.record_count,
                    partition=partition,
                )
            )
        return found

    def _sync(self) -> None:
        self.place.sync_all(_METADATA)


def check_table_name(name: str) -> None:
    """Raises InvalidArgumentError if it is not ``namespace.table``."""
    if name.count(".") < 1 or not all(name.split(".")):
        raise InvalidArgumentError("not the name of an Iceberg table; write NAMESPACE.TABLE", table=name)


def open_catalog(settings: Mapping[str, str]) -> Catalog:
    """The catalog of these settings. Without any: pyiceberg's own configuration. Raises InvalidArgumentError,
    MissingExtraError."""
    try:
        from pyiceberg.catalog import load_catalog
    except ModuleNotFoundError as error:
        raise missing_extra("pyiceberg", "lake") from error
    given = dict(settings)
    name = given.pop("name", "default")
    try:
        return load_catalog(name, **given)
    except ValueError as error:
        raise InvalidArgumentError(f"the Iceberg catalog cannot be opened: {error}", catalog=name) from error


def _marks(state: TableState) -> dict[str, str]:
    return {_SEQUENCE: str(state.sequence), _CUT: state.cut}


def _names(table: Table, snapshot: Any) -> set[str]:
    """Every file that a snapshot needs."""
    found = {snapshot.manifest_list}
    for manifest in snapshot.manifests(table.io):
        found.add(manifest.manifest_path)
        found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)}
    return found
