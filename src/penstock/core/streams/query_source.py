"""Decide which queries may use the name of a writer or a subscriber: one query, and its latest run.

Source: docs/design/0020-who-writes-batches.md.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from penstock.codec.control.readers import SubscriberRecord
from penstock.codec.control.streams import BatchRecord
from penstock.model.errors import ConflictError, WriterInUseError
from penstock.model.queries import ANY_QUERY, UNKNOWN_QUERY, QuerySource

R = TypeVar("R", BatchRecord, SubscriberRecord)

PAST_RUNS_MAX = 8
"""Number of replaced runs that are remembered. An older run also offers a batch below the last, which is refused."""


_ANOTHER_NAME = "use another txnAppId, or another writer_id, or reset_writer=true beside the writer_id"


class BatchPlace(enum.Enum):
    """How a batch relates to its writer: new, a repeat, or the first one of a query that takes the name over."""

    NEW = "new"
    REPEAT = "repeat"
    TAKEN_OVER = "taken over"


def classify_batch(known: BatchRecord | None, batch: int, source: QuerySource | None, *, writer: str) -> BatchPlace:
    """Classify the batch by its writer's record, ``known``.

    Raises:
        WriterInUseError: The name belongs to another query, or to a later run of this one; or it is not known whether the
            batch is a repeat. Its rows were not written.
        ConflictError: The batch is older than the last one of the same checkpoint.
    """
    if known is None or (known.batch < 0 and not known.query):
        return BatchPlace.NEW
    if source is None:
        check_job(known, batch, writer=writer)
        return BatchPlace.NEW if batch > known.batch else BatchPlace.REPEAT
    if not known.query:
        return _place_without_owner(known, batch, source, writer)
    if known.query != source.query:
        if source.replaces == known.query:
            return BatchPlace.TAKEN_OVER
        raise WriterInUseError(
            _about_given(source)
            + "writer name belongs to another query; the rows were not written: continue from that "
            f"query's checkpoint; or {_ANOTHER_NAME}; or take the name over with replaces_query=OWNER",
            writer=writer,
            owner=known.query,
            query=source.query,
            batch=batch,
            last=known.batch,
        )
    if source.run and source.run in known.past_runs:
        raise WriterInUseError(
            "another run of this query writes under this name: a checkpoint, and any copy of it, has one run at a time; "
            "stop one of them; the rows were not written",
            writer=writer,
            query=source.query,
            run=source.run,
            owner_run=known.run,
            batch=batch,
            last=known.batch,
        )
    return _place_by_number(known, batch, source, writer)


def _about_given(source: QuerySource | None) -> str:
    """The beginning of a refusal: that ``replaces_query`` was given, and is wrong. Empty if it was not given.

    A source that names itself claims what was committed before queries were recorded. The sink does so by itself.
    """
    if source is None or source.replaces in ("", source.query):
        return ""
    return "the given replaces_query is wrong, because it does not name the owner; "


def check_job(known: BatchRecord, batch: int | None, *, writer: str) -> None:
    """Return if a job outside of a query may write under the name.

    Raises: WriterInUseError: the name belongs to a query, whatever the batch. A lower one would count as a repeat of the
    query's rows, and the query's own batch as a repeat of a higher one. Nothing was written.
    """
    if not known.query:
        return
    raise WriterInUseError(
        "writer name belongs to a query, and this job names none; the rows were not written: use another txnAppId; or, if "
        "the job is of that query's foreachBatch, set txnQuery to the owner",
        writer=writer,
        owner=known.query,
        last=known.batch,
        **({} if batch is None else {"batch": batch}),
    )


def _place_by_number(known: BatchRecord, batch: int, source: QuerySource, writer: str) -> BatchPlace:
    if batch > known.batch:
        return BatchPlace.NEW
    if source.ordered and batch < known.batch:
        raise ConflictError(
            "query has committed later batches, so its checkpoint is an older copy; the rows were not written: use a new "
            f"checkpoint location, and there {_ANOTHER_NAME}",
            writer=writer,
            query=source.query,
            batch=batch,
            last=known.batch,
        )
    return BatchPlace.REPEAT


def _place_without_owner(known: BatchRecord, batch: int, source: QuerySource, writer: str) -> BatchPlace:
    """Classify a batch by a record that names no query: of a job outside of a query, or of an earlier version."""
    if batch > known.batch:
        return BatchPlace.NEW
    if source.replaces == UNKNOWN_QUERY:
        return BatchPlace.TAKEN_OVER
    if source.replaces != source.query:
        raise WriterInUseError(
            _about_given(source)
            + "writer name was used without a query: by a job outside of one, or by an earlier version; "
            f"the rows were not written. If they are not written yet, {_ANOTHER_NAME}, or set replaces_query=unknown to "
            "write them under this name; if this query has written them, set replaces_query=QUERY to count them as a repeat",
            writer=writer,
            owner=UNKNOWN_QUERY,
            query=source.query,
            batch=batch,
            last=known.batch,
        )
    return _place_by_number(known, batch, source, writer)


_MADE_BY_QUERY_VERSION = 5


def is_made_by_query(group_id: UUID) -> bool:
    """Whether a Spark query made the reader group: ids of such groups have version 5, all others 3 or 4."""
    return group_id.version == _MADE_BY_QUERY_VERSION


TABLE_PREFIX = "table "
"""Prefix of the ids of queries that maintain a table; the table's directory follows."""


def owner_in_words(query: str, group_id: UUID, *, is_java: bool) -> str:
    """Who reads as a subscriber, in words. ``query``: the recorded owner, empty if none; ``is_java``: a Java group."""
    if query:
        return query if query.startswith(TABLE_PREFIX) else f"Spark query {query}"
    if is_made_by_query(group_id):
        return "Spark query (no batch yet)"
    return "reader group (Java)" if is_java else "reader group"


def check_subscriber(query: str, source: QuerySource | None, *, subscriber: str, by_hand: bool = False) -> None:
    """Return if the source may read as the subscriber. ``query`` owns it (empty: nobody does). No source: a new query.

    ``by_hand``: the reader group was not made by a query, so without an owner it may have readers of its own. What a query
    commits under its name is released before they have read it.

    Raises: WriterInUseError. Nothing was moved.
    """
    given = "" if source is None else source.replaces
    if not query:
        if not by_hand or given in (UNKNOWN_QUERY, ANY_QUERY):
            return
        raise WriterInUseError(
            _about_given(source)
            + "subscriber is a reader group that no query has made, and its readers would lose data: use another "
            "subscriber; or, if nobody else needs it, take it over with replaces_query=unknown",
            subscriber=subscriber,
            owner=UNKNOWN_QUERY,
            query="" if source is None else source.query,
        )
    if source is not None and (source.query == query or given in (query, ANY_QUERY)):
        return
    raise WriterInUseError(
        _about_given(source)
        + "subscriber belongs to another query: two queries under one subscriber lose data; continue from that "
        "query's checkpoint; or use another subscriber; or take it over with replaces_query=OWNER",
        subscriber=subscriber,
        owner=query,
        query="" if source is None else source.query,
    )


def check_publisher(known: SubscriberRecord, source: QuerySource | None, *, subscriber: str) -> None:
    """Return if the source may publish as the subscriber. No source: a caller without a query, such as a person or a group.

    Raises: WriterInUseError, also if a later run of the query has published.
    """
    if source is None:
        return
    check_subscriber(known.query, source, subscriber=subscriber)
    if known.query == source.query and source.run in known.past_runs:
        raise WriterInUseError(
            "another run of this query publishes as this subscriber: a checkpoint, and any copy, has one run at a time; "
            "stop one of them",
            subscriber=subscriber,
            query=source.query,
            run=source.run,
            owner_run=known.run,
        )


def owned_by(record: R, source: QuerySource | None) -> R:
    """The record after the source has written, offered a batch without rows, or published. Other runs become past runs."""
    if source is None:
        return record
    if record.query != source.query:
        return replace(record, query=source.query, run=source.run, past_runs=())
    if not source.run or source.run == record.run:
        return record
    past = (record.run, *record.past_runs) if record.run else record.past_runs
    return replace(record, run=source.run, past_runs=past[:PAST_RUNS_MAX])
