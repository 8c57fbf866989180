"""The data pipeline: Penstock as a source and a sink of PySpark.

Importing this package loads neither PySpark nor Arrow: ``session`` and ``java`` are what a driver script needs,
``source`` is found by Spark through the package ``pyspark_penstock``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.lags import Lag


def lag(query: Any, controller: str | None = None) -> list[Lag]:
    """How far a query is behind each of its streams, with the state of its subscribers, as of its last progress.

    Args:
        query: A ``StreamingQuery``. Without progress it has no lags yet. Sources of other formats have none.
        controller: Address of the controller, if it is another one from here than the query reports.
    Raises: StreamNotFoundError, InvalidCutError (the stream was deleted and created again), TruncatedError,
    UnavailableError.
    """
    from penstock.spark.reading.progress import lags

    return lags(query, controller, subscriber=True)
