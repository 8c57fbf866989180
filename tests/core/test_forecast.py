"""Rates, and when they fill a limit; thinning keeps what a plot needs."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.retention.forecast import Filling, Point, rates, thin


def at(time_ms, size, head=0):
    return Point(time_ms=time_ms, size_bytes=size, head_bytes=head)


def test_rates_are_those_of_the_recent_past():
    points = [at(0, 0), at(7_200_000, 1000), at(9_000_000, 2800, 900), at(10_800_000, 4600, 1800)]
    found = rates(points)
    assert (found.append_bytes_per_s, found.release_bytes_per_s, found.window_ms) == (1.0, 0.5, 3_600_000)


def test_a_lonely_recent_point_is_held_against_the_one_before():
    found = rates([at(0, 0), at(36_000_000, 36_000)])
    assert (found.append_bytes_per_s, found.window_ms) == (1.0, 36_000_000)


def test_without_time_there_is_no_rate():
    assert rates([]).append_bytes_per_s == rates([at(5, 5)]).append_bytes_per_s == 0.0
    assert rates([at(5, 5), at(5, 9)]).append_bytes_per_s == 0.0


def test_an_undo_releases_nothing():
    assert rates([at(0, 0, 100), at(1000, 10, 50)]).release_bytes_per_s == 0.0


@given(st.integers(1, 10**12), st.integers(0, 10**12), st.floats(-1e6, 1e6), st.integers(0, 10**13))
def test_a_limit_is_reached_now_later_or_never(limit, used, per_s, now_ms):
    reached = Filling(what="x", limit=limit, used=used, per_s=per_s).reached_ms(now_ms)
    if used >= limit:
        assert reached == now_ms
    elif per_s * 1000 * 365 * 86_400 < limit - used:
        assert reached is None
    else:
        grown = (reached - now_ms) / 1000 * per_s
        assert abs(grown - (limit - used)) <= per_s / 1000 + 1e-6 * limit


@given(st.lists(st.integers(0, 10**9), unique=True, max_size=2000).map(sorted), st.integers(2, 600))
def test_thinning_leaves_the_ends_and_no_more_than_wanted(times, limit):
    gone = thin(times, limit=limit)
    left = [time for time in times if time not in set(gone)]
    assert len(left) == min(limit, len(times))
    assert set(gone) <= set(times)
    if times:
        assert (left[0], left[-1]) == (times[0], times[-1])


def test_what_is_old_becomes_coarse_first():
    times: list[int] = []
    for time in range(5000):
        times.append(time)
        gone = set(thin(times, limit=100))
        times = [item for item in times if item not in gone]
    half = len(times) // 2
    assert times[0] == 0
    assert times[half] - times[0] > 2 * (times[-1] - times[half])
