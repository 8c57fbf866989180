"""A lease ends before the session that it stands on, whatever the delays, if clocks run at about the same rate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.cluster.leases import lease_end_s, renewal_pause_s

ticks = st.floats(0.1, 5)
sessions = st.floats(2, 20)  # ticks


@given(
    tick_s=ticks,
    length=sessions,
    sent_s=st.floats(0, 1e6),
    way_s=st.floats(0, 100),
    late=st.floats(0, 0.5),
    rate=st.floats(0.9, 10),
)
def test_the_lease_ends_before_the_coordinator_can_end_the_session(tick_s, length, sent_s, way_s, late, rate):
    session_s = tick_s * length
    heard_s = way_s - late * tick_s  # since it was sent; what the leader knows may be half a tick old
    passed_s = (lease_end_s(sent_s, session_s) - sent_s) / rate  # the owner's clock runs ``rate`` times as fast
    assert passed_s <= heard_s + session_s + 1e-6


@given(session_s=st.floats(0.2, 100))
def test_a_lease_outlives_three_lost_renewals(session_s):
    assert lease_end_s(0.0, session_s) >= 4 * renewal_pause_s(session_s) - 1e-9
