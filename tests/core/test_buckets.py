"""Buckets: Java's hash, and a distribution that moves as little as it may."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.streams.buckets import bucket_of, distribute, java_hash

names = st.lists(st.sampled_from([f"c{number}" for number in range(8)]), min_size=1, max_size=6, unique=True)
counts = st.integers(1, 40)


def test_the_hash_is_javas():
    # Values of String.hashCode, worked out from its definition s[0]*31^(n-1) + ... + s[n-1].
    assert java_hash("") == 0
    assert java_hash("a") == 97
    assert java_hash("ab") == 97 * 31 + 98
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert java_hash("\U0001f600") == 0xD83D * 31 + 0xDE00


@given(st.text(max_size=40), counts)
def test_every_stream_has_a_bucket(stream, count):
    units = stream.encode("utf-16-be", "surrogatepass") if not any(0xD800 <= ord(c) < 0xE000 for c in stream) else b""
    total = sum(
        int.from_bytes(units[i : i + 2], "big") * 31 ** (len(units) // 2 - 1 - i // 2) for i in range(0, len(units), 2)
    )
    assert bucket_of(stream, count) == ((total & 0xFFFFFFFF) & 0x7FFFFFFF) % count


@st.composite
def histories(draw):
    count = draw(counts)
    assignment = {}
    for _ in range(draw(st.integers(0, 3))):
        assignment = distribute(assignment, draw(names), count)
    return assignment, count


@given(histories(), names)
def test_every_bucket_has_one_owner_and_all_have_the_same_to_within_one(history, alive):
    before, count = history
    after = distribute(before, alive, count)
    assert sorted(bucket for owned in after.values() for bucket in owned) == list(range(count))
    assert set(after) == set(alive)
    sizes = [len(owned) for owned in after.values()]
    assert max(sizes) - min(sizes) <= 1


@given(histories())
def test_the_same_controllers_keep_what_they_have(history):
    before, count = history
    if before:
        assert distribute(before, list(before), count) == before


@given(histories(), names)
def test_no_more_buckets_move_than_must(history, alive):
    before, count = history
    after = distribute(before, alive, count)
    if len(alive) == 1 or not set(alive) & set(before):
        return
    owner = {bucket: name for name, owned in before.items() for bucket in owned}
    moved = [b for name, owned in after.items() for b in owned if owner.get(b) in alive and owner[b] != name]
    # Orphans move in any case; of the living only those move whose owner would keep more than its share.
    spare = sum(max(0, len(before.get(name, ())) - len(after[name])) for name in alive)
    assert len(moved) == spare
    assert spare <= sum(max(0, len(before.get(name, ())) - count // len(alive)) for name in alive)


@given(histories(), names)
def test_the_order_of_names_says_nothing(history, alive):
    before, count = history
    assert distribute(before, alive, count) == distribute(dict(reversed(before.items())), alive[::-1], count)
