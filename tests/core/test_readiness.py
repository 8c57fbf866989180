"""Which functions of a store work is decided by facts, and each that does not has its reason."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.segments.readiness import FUNCTIONS, ReadinessFacts, not_ready

REASONS = st.none() | st.sampled_from(["disk is full", "no answer"])
FACTS = st.builds(
    ReadinessFacts,
    offline=REASONS,
    full=REASONS,
    trouble=REASONS,
    unreachable=st.booleans(),
    held_bytes=st.integers(0, 100),
    limit_bytes=st.integers(1, 100),
)


@given(facts=FACTS)
def test_a_function_is_ready_unless_something_that_it_needs_fails(facts: ReadinessFacts) -> None:
    found = not_ready(facts)
    assert all(found.values())
    if facts.offline is not None:
        assert set(found) == set(FUNCTIONS)
        return
    assert ("tiering" in found) == (facts.trouble is not None)
    assert ("reads" in found) == (facts.trouble is not None and facts.unreachable)
    assert "appends" in found or (facts.full is None and facts.held_bytes < facts.limit_bytes)


def test_a_store_without_trouble_is_ready_and_a_full_memory_is_not() -> None:
    calm = ReadinessFacts(offline=None, full=None, trouble=None, unreachable=False, held_bytes=0, limit_bytes=160)
    assert not_ready(calm) == {}
    waiting = ReadinessFacts(offline=None, full=None, trouble=None, unreachable=False, held_bytes=155, limit_bytes=160)
    assert "155 of 160 bytes" in not_ready(waiting)["appends"]
