"""Who writes or reads under a name: a query, and one run of it."""

from __future__ import annotations

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

UNKNOWN_QUERY = "unknown"
"""As ``replaces``: every user of the name that is no query, such as an earlier version, a job, or a reader group."""
ANY_QUERY = "any"
"""As ``replaces`` for a subscriber: whichever query owns it."""
SOURCE_MAX_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySource:
    """The query that commits a batch under a writer's name, or publishes a cut as a subscriber.

    ``query``: the same after each restart from one checkpoint; a new one for a new checkpoint. ``run``: a new one after
    each restart; empty: unknown. ``replaces``: the query whose name this one takes over. With its own id, it claims
    batches that were committed before queries were recorded. ``ordered``: the batches come from a checkpoint, which
    repeats only its last one; otherwise any batch that is not above the last one is a repeat.
    """

    query: str
    run: str = ""
    replaces: str = ""
    ordered: bool = True

    def __post_init__(self) -> None:
        if not self.query:
            raise InvalidArgumentError("source must name its query")
        for value in (self.query, self.run, self.replaces):
            try:
                size_bytes = len(value.encode())
            except UnicodeEncodeError as error:
                raise InvalidArgumentError("name of a query or run is not text", value=ascii(value[:80])) from error
            if size_bytes > SOURCE_MAX_BYTES:
                raise InvalidArgumentError(
                    f"name of a query or run must have at most {SOURCE_MAX_BYTES} bytes", value=value[:80]
                )
