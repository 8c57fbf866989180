"""Rows are refused, with what to do, wherever they could pass for a repeat of rows that somebody else wrote."""

from __future__ import annotations

import pytest

from penstock.codec.control.streams import BatchRecord
from penstock.core.streams.query_source import BatchPlace, check_subscriber, classify_batch, owned_by
from penstock.model.errors import ConflictError, WriterInUseError
from penstock.model.queries import QuerySource

OF_A_JOB = BatchRecord(batch=4, transactions=())
OF_A_QUERY = BatchRecord(batch=4, transactions=(), query="q")


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("batch", [0, 3, 4])
def test_a_query_does_not_take_the_versions_of_a_plain_job_for_its_own(batch: int, ordered: bool) -> None:
    with pytest.raises(WriterInUseError, match="not written") as caught:
        classify_batch(OF_A_JOB, batch, QuerySource(query="q", ordered=ordered), writer="app")
    assert (caught.value.fields["owner"], caught.value.fields["last"]) == ("unknown", 4)
    taking = QuerySource(query="q", ordered=ordered, replaces="unknown")
    assert classify_batch(OF_A_JOB, batch, taking, writer="app") is BatchPlace.TAKEN_OVER


def test_versions_from_before_queries_were_recorded_are_claimed_by_the_querys_own_id() -> None:
    claiming = QuerySource(query="q", ordered=False, replaces="q")
    assert classify_batch(OF_A_JOB, 3, claiming, writer="app") is BatchPlace.REPEAT


@pytest.mark.parametrize("batch", [0, 4, 5])
def test_a_plain_job_under_the_name_of_a_query_is_refused(batch: int) -> None:
    """Also with a higher version: the query's batch of that number would count as its repeat."""
    with pytest.raises(WriterInUseError, match="another txnAppId") as caught:
        classify_batch(OF_A_QUERY, batch, None, writer="app")
    assert (caught.value.fields["owner"], caught.value.fields["batch"]) == ("q", batch)
    empty = BatchRecord(batch=-1, transactions=(), query="q")
    with pytest.raises(WriterInUseError):
        classify_batch(empty, batch, None, writer="app")


@pytest.mark.parametrize("batch", [0, 4])
def test_a_plain_job_that_is_repeated_writes_nothing(batch: int) -> None:
    assert classify_batch(owned_by(OF_A_JOB, None), batch, None, writer="app") is BatchPlace.REPEAT
    assert classify_batch(OF_A_JOB, 5, None, writer="app") is BatchPlace.NEW


def test_advice_for_a_used_name_works_for_a_txn_app_id_too() -> None:
    other, older = QuerySource(query="q2"), QuerySource(query="q")
    for record, batch, source in ((OF_A_QUERY, 0, other), (OF_A_QUERY, 3, older), (OF_A_JOB, 0, older)):
        with pytest.raises(ConflictError, match="another txnAppId"):
            classify_batch(record, batch, source, writer="app")


@pytest.mark.parametrize("replaces", ["any", "nonsense", "unknown"])
def test_a_wrong_replaces_query_is_called_wrong_and_no_other(replaces: str) -> None:
    given = QuerySource(query="q2", replaces=replaces)
    with pytest.raises(WriterInUseError, match="given replaces_query is wrong"):
        classify_batch(OF_A_QUERY, 0, given, writer="app")
    if replaces != "any":
        with pytest.raises(WriterInUseError, match="given replaces_query is wrong"):
            check_subscriber("q", given, subscriber="s/g")
    for none in ("", "q2"):
        with pytest.raises(WriterInUseError) as caught:
            classify_batch(OF_A_QUERY, 0, QuerySource(query="q2", replaces=none), writer="app")
        assert "is wrong" not in str(caught.value)


def test_a_query_does_not_take_over_a_reader_group_that_was_made_by_hand_without_being_asked_to() -> None:
    for replaces in ("", "q", "other"):
        with pytest.raises(WriterInUseError, match="replaces_query=unknown"):
            check_subscriber("", QuerySource(query="q", replaces=replaces), subscriber="s/g", by_hand=True)
    for replaces in ("unknown", "any"):
        check_subscriber("", QuerySource(query="q", replaces=replaces), subscriber="s/g", by_hand=True)
    check_subscriber("", QuerySource(query="q"), subscriber="s/g")
    check_subscriber("q", QuerySource(query="q"), subscriber="s/g", by_hand=True)
    with pytest.raises(WriterInUseError):
        check_subscriber("other", QuerySource(query="q", replaces="unknown"), subscriber="s/g", by_hand=True)
