"""Disks that a power loss may leave of a real store, as a trace of its system calls tells: all are recovered."""

import random
from pathlib import Path

import pytest

from tests.crash import states
from tests.crash.apart import apart
from tests.crash.disk import PowerLossDisk
from tests.crash.model import Belief, Subject
from tests.crash.trace import Event, read_trace, strace_path

pytestmark = pytest.mark.server
ROOT, JOURNAL = "/s/data", "/s/journal"


def hexed(text):
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


def events_of(*lines):
    return read_trace(iter(lines), Path(ROOT), Path(JOURNAL))


def line(number, text):
    return f"{number} {text}\n"


def test_a_trace_is_read_in_the_order_in_which_calls_end():
    at, other = hexed(f"{ROOT}/a"), hexed("/etc/passwd")
    found = events_of(
        line(1, f'openat(AT_FDCWD<{hexed("/")}>, "{at}", O_RDWR|O_CREAT|O_CLOEXEC, 0600) = 5<{at}>'),
        line(
            1,
            f'pwritev2(5<{at}>, [{{iov_base="{hexed("ab")}", iov_len=2}}, {{iov_base="{hexed("c")}", iov_len=1}}], 2, 7, 0) = 3',
        ),
        line(1, f"fdatasync(5<{at}> <unfinished ...>"),
        line(2, f'pwrite64(5<{at}>, "{hexed("late")}", 4, 0) = 2'),
        line(1, "<... fdatasync resumed>) = 0"),
        line(2, f'pwrite64(9<{other}>, "{hexed("no")}", 2, 0) = 2'),
        line(2, f"fdatasync(5<{at}>) = -1 EIO (Input/output error) (INJECTED)"),
        line(2, f'rename("{at}", "{hexed(f"{ROOT}/b")}") = 0'),
        line(2, f'write(4<{hexed(JOURNAL)}>, "{hexed("[1]")}", 3) = 3'),
        line(2, f"fallocate(5<{at}>, 0, 0, 4096) = 0"),
        line(2, f"fallocate(5<{at}>, FALLOC_FL_KEEP_SIZE|FALLOC_FL_PUNCH_HOLE, 512, 1024) = 0"),
    )
    kinds = ["create", "write", "write", "sync", "failed-sync", "rename", "say", "extend", "punch"]
    assert [item.kind for item in found] == kinds
    assert (found[7].offset, found[8].offset, found[8].length) == (4096, 512, 1024)
    assert (found[1].offset, found[1].data) == (7, b"abc")
    assert found[2].data == b"la"
    assert found[3].began < found[2].ended < found[3].ended


def test_a_sync_of_the_file_system_covers_all_files_and_their_names():
    made = [hexed(f"{ROOT}/{name}") for name in ("0/a", "1/b")]
    found = events_of(
        line(1, f'openat(AT_FDCWD<{hexed("/")}>, "{made[0]}", O_RDWR|O_CREAT|O_CLOEXEC, 0600) = 5<{made[0]}>'),
        line(1, f'openat(AT_FDCWD<{hexed("/")}>, "{made[1]}", O_RDWR|O_CREAT|O_CLOEXEC, 0600) = 6<{made[1]}>'),
        line(1, f"syncfs(7<{hexed(f'{ROOT}/0')}>) = 0"),
        line(1, f"syncfs(7<{hexed(f'{ROOT}/0')}>) = -1 EIO (Input/output error)"),
    )
    assert [(item.kind, item.path.removeprefix(ROOT)) for item in found[2:]] == [
        *(("sync", path) for path in ("/0/a", "/1/b", "", "/0", "/1")),
        *(("failed-sync", path) for path in ("/0/a", "/1/b")),
    ]


def event(kind, name, place, **fields):
    return Event(kind=kind, path=f"{ROOT}/{name}" if name else ROOT, began=place, ended=place, **fields)


def files_after(*happened, count=400):
    disk = PowerLossDisk(ROOT)
    for item in happened:
        disk.apply(item)
    return {tuple(sorted(image.files.items())) for image in disk.images(random.Random(1), count)}


def test_a_power_loss_takes_what_no_sync_has_covered():
    created, written = event("create", "a", 1), event("write", "a", 2, data=b"new")
    assert files_after(created, written) >= {(), (("a", b""),), (("a", b"new"),), (("a", b"n"),)}
    # A file that is synced is nothing without its name, and its name nothing without its bytes.
    synced, named = event("sync", "a", 3), event("sync", "", 4)
    assert files_after(created, written, synced) == {(), (("a", b"new"),)}
    assert files_after(created, written, named) >= {(("a", b""),), (("a", b"new"),)}
    assert () not in files_after(created, written, named)
    assert files_after(created, written, synced, named) == {(("a", b"new"),)}


def test_allocated_space_is_zeros_behind_what_was_written():
    created, named, written = event("create", "a", 0), event("sync", "", 1), event("write", "a", 2, data=b"new")
    allocated = event("extend", "a", 3, offset=5)
    assert (("a", b"new\0\0"),) in files_after(created, named, written, allocated)
    assert files_after(created, named, written, event("sync", "a", 3), event("extend", "a", 4, offset=5)) == {
        (("a", b"new"),),
        (("a", b"new\0\0"),),
    }
    shorter = event("extend", "a", 4, offset=2)
    assert files_after(created, named, written, shorter, event("sync", "a", 5)) == {(("a", b"new"),)}


def test_a_sync_covers_what_had_ended_before_it_began():
    late = Event(kind="sync", path=f"{ROOT}/a", began=2, ended=5)
    found = files_after(event("create", "a", 1), event("sync", "", 1), event("write", "a", 3, data=b"x"), late)
    assert (("a", b""),) not in files_after(event("create", "a", 0), event("write", "a", 1, data=b"x"), late)
    assert (("a", b""),) in found


def test_a_failed_sync_forgets_for_good():
    written, failed = event("write", "a", 2, data=b"x"), event("failed-sync", "a", 3)
    assert files_after(event("create", "a", 0), event("sync", "", 1), written, failed, event("sync", "a", 4)) == {
        (("a", b""),)
    }


def test_unsynced_names_are_lost_one_by_one():
    happened = [event("create", "a", 0), event("sync", "", 1), event("rename", "a", 2, target=f"{ROOT}/b")]
    happened.append(event("create", "c", 3))
    assert {tuple(name for name, _ in files) for files in files_after(*happened)} == {
        ("a",),
        ("b",),
        ("a", "c"),
        ("b", "c"),
    }


def test_the_model_knows_a_broken_promise():
    belief = Belief()
    belief.subjects["x"] = subject = Subject()
    subject.begin({"do": "create", "name": "s"})
    subject.acknowledge()
    subject.begin({"do": "append", "name": "s", "tag": "t", "size": 9, "writer": "w", "number": 1})
    for state in subject.states[1:]:
        assert belief.mismatches({"x": state}) == []
    assert belief.mismatches({"x": {}})
    assert belief.mismatches({"x": {"s": ("segment", 0, 3, False, b"???", ())}})
    subject.acknowledge()
    assert belief.mismatches({"x": subject.states[1]})


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    strace = strace_path()
    if strace is None:
        pytest.skip("strace is not there, or may not trace")
    directory = tmp_path_factory.mktemp("traced")
    return directory, states.record(strace, directory, 1, scale=0.3)


# Only a hang may reach it: the longest takes 28 s of CPU, which took 120 s on two busy cores.
TIMEOUT_S = 900


def enumerated(traced, **how):
    directory, events = traced
    return apart(
        states.enumerate_states,
        *(events, str(directory / "data"), directory),
        **{"seed": 1, "per_point": 6, "timeout_s": TIMEOUT_S, **how},
    )


@pytest.mark.parametrize("most", [20, pytest.param(240, marks=pytest.mark.slow)])
def test_every_disk_that_a_power_loss_may_leave_recovers(traced, most):
    _, events = traced
    tally = enumerated(traced, every=max(1, len(events) * 5 // most))
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.states > most // 3
    assert tally.torn > tally.states // 3
    assert tally.again > tally.states // 10


def test_a_disk_that_a_killed_run_left_does_not_disturb_the_next(traced):
    directory, _ = traced
    (directory / "disk").mkdir()
    tally = enumerated(traced, states_max=1)
    assert (tally.states, tally.wrong) == (1, [])


# What each of them covers is lost without it: the promises hang on every one of these syncs.
SYNCS = {
    "log": r"wal/.*\.log$",
    "log's names": r"/wal$",
    "log's epoch": r"/wal/EPOCH",
    "chunks": r"/chunks/.*[^x]$",
    "sidecars": r"/chunks/.*\.idx$",
    "chunks' names": r"/chunks/\d+$",
    "metadata": r"/store\.db$",
    "metadata's log": r"/store\.db-wal$",
    "metadata's names": r"/metadata$",
}


@pytest.mark.slow
@pytest.mark.parametrize("which", SYNCS)
def test_no_sync_may_be_left_out(traced, which):
    for every in (7, 3, 1):
        tally = enumerated(traced, every=every, forget=SYNCS[which])
        if tally.wrong:
            return
    pytest.fail(f"without the syncs of the {which} nothing was lost in {tally.states} disks")
