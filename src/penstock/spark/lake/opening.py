"""Open a table by what a user wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from penstock.model.errors import InvalidArgumentError, missing_extra
from penstock.model.values.dataclass import dataclass
from penstock.spark.lake.delta import DeltaLakeTable
from penstock.spark.lake.iceberg import IcebergTable, check_table_name, open_catalog
from penstock.spark.lake.parquet import ParquetTable
from penstock.spark.lake.place import place_of
from penstock.spark.lake.port import FORMATS, CommittedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAddress:
    """Where a table is.

    format: ``delta``, ``iceberg`` or ``parquet``. target: a directory or a URL; of Iceberg ``namespace.table``.
    storage: settings of the object store by obstore's names. catalog: settings of the Iceberg catalog.
    """

    format: str
    target: str
    storage: Mapping[str, str] = field(default_factory=dict)
    catalog: Mapping[str, str] = field(default_factory=dict)

    def checked(self) -> TableAddress:
        """Itself. Raises InvalidArgumentError, MissingExtraError."""
        if self.format not in FORMATS:
            raise InvalidArgumentError(f"the format of a table is one of {', '.join(FORMATS)}", format=self.format)
        if self.format == "iceberg" and self.storage:
            raise InvalidArgumentError("storage options are not for Iceberg tables; set them in the catalog")
        if self.format != "iceberg" and self.catalog:
            raise InvalidArgumentError("only an Iceberg table has a catalog", format=self.format)
        if self.format == "iceberg":
            check_table_name(self.target)
        else:
            place = place_of(self.target, self.storage)
            if self.format == "delta" and place.directory is not None and "%" in place.url:
                raise InvalidArgumentError(
                    "the library of Delta Lake reads % in the name of a directory as an escape; choose another directory",
                    table=place.url,
                )
        return self

    def registered(self) -> str:
        """How a subscriber names the table. Without settings, which may hold secrets."""
        place = self.target if self.format == "iceberg" else place_of(self.target, self.storage).url
        return f"{self.format} {place}"


def open_table(address: TableAddress) -> CommittedTable:
    """The table at the address, which may not exist yet. Raises InvalidArgumentError, MissingExtraError."""
    address = address.checked()
    if address.format == "iceberg":
        return IcebergTable(open_catalog(address.catalog), address.target)
    place = place_of(address.target, address.storage)
    if address.format == "parquet":
        return ParquetTable(place)
    try:
        import deltalake  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing_extra("deltalake", "lake") from error
    return DeltaLakeTable(place)
