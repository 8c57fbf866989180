"""Append times of events, from those of their blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.spark.reading.plan import Times


class AppendClock:
    """Append times of a piece's events."""

    def __init__(self, times: Times) -> None:
        # The bytes after all of them have no known time.
        self._ends = np.array([end for end, _ in times], dtype=np.int64)
        self._us = np.array([0 if at is None else at * 1000 for _, at in times] + [0], dtype=np.int64)
        self._unknown = np.array([at is None for _, at in times] + [True])

    def column(self, offsets: np.ndarray[Any, Any]) -> pa.Array:
        """The times of events that begin at these offsets of the segment; null where not known."""
        places = np.searchsorted(self._ends, offsets, side="right")
        return pa.array(self._us[places], mask=self._unknown[places], type=pa.int64()).cast(pa.timestamp("us", "UTC"))
