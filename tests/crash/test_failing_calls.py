"""The n-th system call of a real store fails, or kills it: nothing acknowledged is missing, every refusal is typed."""

import pytest

from tests.crash.apart import apart
from tests.crash.faults import Fault, meet_each
from tests.crash.trace import strace_path

pytestmark = pytest.mark.server

FEW = [
    Fault("pwritev2", "EIO", 20),
    Fault("pwritev2", "ENOSPC", 8),
    *(Fault("pwrite64", "EIO", number) for number in (2, 60)),
    *(Fault("fdatasync", "EIO", number) for number in (2, 12, 30)),
    Fault("fdatasync", "KILL", 25),
]
MORE = [
    *(Fault("pwritev2", "EIO", number) for number in (3, 45)),
    Fault("pwritev2", "ENOSPC", 30),
    Fault("pwrite64", "EIO", 25),
    Fault("pwrite64", "ENOSPC", 30),
    Fault("fdatasync", "EIO", 50),
    Fault("fsync", "EIO", 4),
    Fault("rename", "EIO", 2),
    Fault("unlink", "EIO", 1),
    Fault("fdatasync", "EIO", 20, sticky=True),
]
"""What a run without other work takes half a minute for."""


@pytest.mark.parametrize("faults", [FEW, pytest.param(MORE, marks=pytest.mark.slow)], ids=["few", "more"])
def test_a_failing_call_loses_nothing_and_is_told(tmp_path, faults):
    strace = strace_path()
    if strace is None:
        pytest.skip("strace is not there, or may not trace")
    tally = apart(meet_each, faults, strace, tmp_path)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert sum(tally.hits.values()) > len(faults) * 2 // 3
    assert tally.power >= 2
    assert {name.split(" ")[0] for name in tally.hits} >= {"log", "metadata"}


def test_writes_that_are_cut_short_lose_nothing(tmp_path):
    limits = [Fault("limit", "EFBIG", number) for number in (9_000, 70_000, 98_000)]
    tally = apart(meet_each, limits, None, tmp_path)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert sum(tally.refusals.values()) >= 2
