from __future__ import annotations

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.streams import table_routing
from penstock.core.streams.table_routing import hash_primary_key, partition_of
from penstock.model.segments import even_ranges

# Printed by HashHelper.seededWith("KeyValueTableRouter").hashToRange of pravega-common 0.13.0.
VECTORS = {
    b"": 0.42352702020022215,
    b"a": 0.6272098046731807,
    b"aaaa": 0.609972179080879,
    b"hello": 0.7859863787458266,
    b"\x00\x01\x02\x03": 0.8294188274100467,
    b"\xff\x80\x00\xc8": 0.07516914445638379,
    b"abcdefghijklmnopqrstuvwxyz": 0.6768762191763527,
}


@pytest.mark.parametrize(("key", "value"), list(VECTORS.items()))
def test_hash_is_that_of_pravegas_java_client(key: bytes, value: float) -> None:
    assert hash_primary_key(key) == value


@given(st.binary(max_size=100), st.integers(0, (1 << 31) - 1))
def test_the_hash_is_murmur_where_the_library_has_the_seed_too(key: bytes, seed: int) -> None:
    assert table_routing._murmur(key, seed) == mmh3.hash64(key, seed, signed=False)[0]


@given(st.binary(max_size=40), st.integers(1, 300))
def test_a_partition_holds_the_hash_of_its_keys(key: bytes, partitions: int) -> None:
    keys = even_ranges(partitions)[partition_of(key, partitions)]
    assert keys.low <= hash_primary_key(key) < keys.high


@given(st.integers(1, 2000), st.data())
def test_a_bound_belongs_to_the_partition_above_it(partitions: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, partitions - 1))
    low = even_ranges(partitions)[number].low
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_routing, "hash_primary_key", lambda _: low)
        assert partition_of(b"", partitions) == number
