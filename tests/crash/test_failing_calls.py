"""The n-th system call of a real store fails, or kills it: nothing acknowledged is missing, every refusal is typed."""

import pytest

from penstock.testing.crash.faults import Fault, Sweep
from penstock.testing.crash.trace import strace_path

# They fork the process that they run in: beside the threads of other tests (gRPC, Spark) a child may wait for a lock for ever.
pytestmark = [pytest.mark.server, pytest.mark.slow]

SAMPLE = [
    *(Fault("pwritev2", "EIO", number) for number in (3, 20, 45)),
    *(Fault("pwritev2", "ENOSPC", number) for number in (8, 30)),
    *(Fault("pwrite64", "EIO", number) for number in (2, 25, 60)),
    Fault("pwrite64", "ENOSPC", 30),
    *(Fault("fdatasync", "EIO", number) for number in (2, 12, 30, 50)),
    Fault("fdatasync", "KILL", 25),
    Fault("fsync", "EIO", 4),
    Fault("rename", "EIO", 2),
    Fault("unlink", "EIO", 1),
    Fault("fdatasync", "EIO", 20, sticky=True),
]


@pytest.fixture
def sweep(tmp_path):
    strace = strace_path()
    if strace is None:
        pytest.skip("strace is not there, or may not trace")
    return Sweep(strace, tmp_path)


def test_a_failing_call_loses_nothing_and_is_told(sweep):
    for fault in SAMPLE:
        sweep.meet(fault)
    assert not sweep.tally.wrong, "\n".join(sweep.tally.wrong)
    assert sum(sweep.tally.hits.values()) > len(SAMPLE) * 2 // 3
    assert sweep.tally.power >= 3
    assert {name.split(" ")[0] for name in sweep.tally.hits} >= {"log", "metadata"}


def test_writes_that_are_cut_short_lose_nothing(tmp_path):
    sweep = Sweep(None, tmp_path)
    for number in (9_000, 40_000, 70_000, 98_000):
        sweep.meet(Fault("limit", "EFBIG", number))
    assert not sweep.tally.wrong, "\n".join(sweep.tally.wrong)
    assert sum(sweep.tally.refusals.values()) >= 3
