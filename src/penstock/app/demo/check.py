"""Compare the output of the pipeline with the source, with pandas: nothing lost, nothing doubled."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from penstock.app.demo.flights import rows
from penstock.model.values.dataclass import dataclass

_KEYS = ["carrier", "hour"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Flights counted by the pipeline, and how far its counts and delay sums are from those of the source."""

    processed: int
    duplicates: int
    losses: int
    wrong_sums: int
    groups: int

    @property
    def good(self) -> bool:
        return not (self.duplicates or self.losses or self.wrong_sums)


def expected(limit: int | None = None) -> pd.DataFrame:
    """Flights and summed departure delay per carrier and hour, straight from the source."""
    table = pd.DataFrame(rows())
    if limit is not None:
        table["minute"] = table["minute"].astype(int)
        table["flight"] = table["flight"].astype(int)
        table = table.sort_values(["time_hour", "minute", "carrier", "flight", "tailnum"], kind="stable").head(limit)
    delays = pd.to_numeric(table["dep_delay"], errors="coerce").fillna(0).astype("int64")
    table = table.assign(hour=table["time_hour"], delay=delays)
    return table.groupby(_KEYS).agg(flights=("delay", "size"), delay=("delay", "sum"))


def compare(results: pd.DataFrame, wanted: pd.DataFrame) -> Verdict:
    """``results`` has columns carrier, hour, flights, delay; where a group comes more than once, the last one counts."""
    last = results.groupby(_KEYS).last()
    both = wanted.join(last, how="outer", lsuffix="_wanted", rsuffix="_found").fillna(0)
    difference = both["flights_found"] - both["flights_wanted"]
    return Verdict(
        processed=int(last["flights"].sum()),
        duplicates=int(difference.clip(lower=0).sum()),
        losses=int((-difference).clip(lower=0).sum()),
        wrong_sums=int((both["delay_found"] != both["delay_wanted"]).sum()),
        groups=len(last),
    )


def from_events(events: Iterable[bytes]) -> pd.DataFrame:
    """Results as the result stream has them, in the order read (one key is always in order)."""
    found = pd.DataFrame(json.loads(event) for event in events)
    return found if len(found) else pd.DataFrame(columns=[*_KEYS, "flights", "delay"])


def from_parquet(directory: Path) -> pd.DataFrame:
    """Results as the Parquet files have them, in the order of the batches."""
    parts = [pd.read_parquet(path) for path in sorted(directory.glob("batch_*"))]
    return pd.concat(parts) if parts else pd.DataFrame(columns=[*_KEYS, "flights", "delay"])
