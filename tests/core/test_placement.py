"""What is merged lives together."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.segments.placement import container_of, primary_name
from penstock.model.names import StreamName, segment_name, transaction_segment_name, transient_segment_name
from penstock.model.segments import make_segment_id

STREAM = StreamName("a", "s")


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.uuids(), st.integers(1, 64))
def test_a_transaction_lives_with_every_duplicate_of_its_parent(number, epoch, later, txn, containers):
    parent = segment_name(STREAM, make_segment_id(epoch, number))
    duplicate = segment_name(STREAM, make_segment_id(later, number))
    home = container_of(duplicate, containers)
    assert container_of(parent, containers) == home
    assert container_of(transaction_segment_name(parent, txn), containers) == home
    assert container_of(transient_segment_name(parent, txn, UUID(int=1)), containers) == home


def test_the_segments_of_a_stream_are_spread():
    names = [segment_name(STREAM, make_segment_id(0, number)) for number in range(64)]
    assert len({container_of(name, 4) for name in names}) == 4
    assert primary_name("a/s/0.#epoch.3") == "a/s/0"
    assert primary_name("_system/_tables/scopes") == "_system/_tables/scopes"
