"""A bit that rots in a file of a stopped store is harmless or refused, and nothing is taken away for it."""

import pytest

from tests.crash import flips
from tests.crash.apart import apart
from tests.crash.model import Belief

pytestmark = pytest.mark.server


@pytest.mark.parametrize("count", [15, pytest.param(150, marks=pytest.mark.slow)])
def test_flipped_bits_are_harmless_or_refused(count):
    tally = apart(flips.run, count, seed=11, scale=0.3)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.flips == count
    detected = {name for name in tally.outcomes if name.endswith("detected")}
    # Few bits of the metadata are in pages with rows: some dozen flips may miss them all.
    expected = {"chunk detected", "metadata detected"} if count >= 150 else {"chunk detected"}
    assert expected <= detected, tally.outcomes


def test_a_store_that_serves_other_bytes_is_seen(tmp_path):
    files, belief = apart(flips.make_store, tmp_path / "store", 3, scale=0.2)
    assert belief.acked > 20
    other = Belief()
    other.subjects = {**belief.subjects}
    # As if one more append had been acknowledged than the store holds.
    subject = next(
        item for item in other.subjects.values() if any(entry[0] == "segment" for entry in item.states[-1].values())
    )
    name = next(name for name, entry in subject.states[-1].items() if entry[0] == "segment" and not entry[3])
    subject.begin({"do": "append", "name": name, "tag": "never", "size": 9, "writer": "0" * 32, "number": 1})
    subject.resolve(len(subject.states) - 1)
    root = tmp_path / "store"  # where its record says that its tier 2 is
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    refused, wrong = apart(flips.look, root, other)
    assert not refused
    assert len(wrong) == 1
