"""The checker reports every kind of broken promise, and nothing of a clean history."""

import pytest

from penstock.testing.simulation.checker import check
from penstock.testing.simulation.history import History, Outcome

STREAM = "scope/stream"


class Run:
    """A history made by hand, a second per record."""

    def __init__(self):
        self.now = 0.0
        self.history = History(self._tick, lambda _: None)

    def _tick(self):
        self.now += 1.0
        return self.now

    def write(self, number, *, writer="w", key="k", acked=True, group=None):
        data = f"{writer}-{number}".encode()
        made = self.history.write(STREAM, writer, number, key, data, group=group)
        if acked:
            self.history.acknowledged(made)
        return made

    def read(self, reading, segment, *writes, offset=0):
        for write in writes:
            self.history.read(reading, segment, offset, write.data)
            offset += 8 + len(write.data)
        return offset

    def reading(self, name="auditor", *, complete=True, final=False, skips=False, segments=("s0",)):
        made = self.history.reading(STREAM, name, skips=skips)
        made.complete, made.final, made.segments = complete, final, segments
        return made

    def kinds(self):
        return {anomaly.kind for anomaly in check(self.history)}


def clean_run():
    run = Run()
    writes = [run.write(number) for number in range(1, 4)]
    group = run.history.group("txn")
    parts = [run.write(number, writer="txn", group=group) for number in (1, 2)]
    run.history.deciding(group)
    run.history.decided(group, Outcome.OK)
    auditor, final = run.reading(), run.reading("final", final=True)
    for reading in (auditor, final):
        run.read(reading, "s0", *writes, *parts)
    return run


def test_a_clean_history_has_no_anomaly():
    assert clean_run().kinds() == set()


def test_an_unacknowledged_event_may_be_there_or_not():
    run = clean_run()
    run.write(9, writer="other", acked=False)
    assert run.kinds() == set()


def test_a_lost_event():
    run = clean_run()
    run.write(9, writer="other")
    assert run.kinds() == {"lost"}


def test_a_duplicate():
    run = Run()
    one = run.write(1)
    run.read(run.reading(), "s0", one, one)
    assert "duplicate" in run.kinds()


def test_a_phantom():
    run = clean_run()
    run.history.read(run.reading("other", complete=False), "s9", 0, b"never written")
    assert run.kinds() == {"phantom"}


def test_a_reordered_key():
    run = Run()
    first, second = run.write(1), run.write(2)
    run.read(run.reading(), "s0", second, first)
    assert run.kinds() == {"reordered"}
    run = Run()
    first, second = run.write(1, key="a"), run.write(2, key="b")
    run.read(run.reading(), "s0", second, first)
    assert run.kinds() == set(), "order is promised per key"


def test_a_reader_that_goes_back_or_jumps():
    run = clean_run()
    again = run.reading("again", complete=False)
    writes = run.history.writes
    end = run.read(again, "s0", writes[0], writes[1])
    run.read(again, "s0", writes[0])
    assert "reordered" in run.kinds()
    run = clean_run()
    jumps = run.reading("jumps", complete=False)
    run.read(jumps, "s0", run.history.writes[0])
    run.read(jumps, "s0", run.history.writes[2], offset=end)
    assert run.kinds() == {"skipped"}
    jumps.skips = True
    assert run.kinds() == set(), "one that passes over truncated data may"


def test_an_inconsistent_offset():
    run = Run()
    one, two = run.write(1, key="a"), run.write(1, writer="v", key="b")
    run.read(run.reading("a", complete=False), "s0", one)
    run.read(run.reading("b", complete=False), "s0", two)
    assert run.kinds() == {"inconsistent offset"}


def test_an_event_elsewhere_than_its_acknowledgement_said():
    run = Run()
    one = run.write(1, acked=False)
    run.history.acknowledged(one, segment="s0", offset=77)
    run.read(run.reading(), "s0", one)
    assert run.kinds() == {"inconsistent offset"}


def test_read_then_vanished():
    run = clean_run()
    ghost = run.write(9, writer="ghost", acked=False)
    early = run.reading("early", complete=False)
    run.read(early, "s0", ghost, offset=100)
    assert run.kinds() == {"vanished"}


def test_what_was_truncated_has_not_vanished():
    run = clean_run()
    final = run.history.readings[1]
    gone = final.reads.pop(0)
    final.start = {"s0": gone.offset + 8 + len(gone.data)}
    final.complete = False
    assert run.kinds() == set()


def test_a_torn_transaction():
    run = Run()
    group = run.history.group("txn")
    parts = [run.write(number, writer="txn", group=group) for number in (1, 2)]
    run.history.deciding(group)
    run.read(run.reading(), "s0", parts[0])
    assert run.kinds() == {"torn"}


def test_a_transaction_in_two_places():
    run = Run()
    group = run.history.group("txn")
    parts = [run.write(number, writer="txn", group=group) for number in (1, 2)]
    other = run.write(1, writer="other")
    run.history.deciding(group)
    run.history.decided(group, Outcome.OK)
    run.read(run.reading(), "s0", parts[0], other, parts[1])
    assert run.kinds() == {"torn"}


def test_an_aborted_read():
    run = Run()
    group = run.history.group("txn")
    part = run.write(1, writer="txn", group=group)
    run.history.deciding(group)
    run.history.decided(group, Outcome.FAILED)
    run.read(run.reading(), "s0", part)
    assert run.kinds() == {"aborted read"}


def test_a_refused_append_that_is_there():
    run = Run()
    one = run.write(1, acked=False)
    run.history.refused(one)
    run.read(run.reading(), "s0", one)
    assert run.kinds() == {"aborted read"}


def test_a_read_before_the_commit():
    run = Run()
    group = run.history.group("txn")
    part = run.write(1, writer="txn", group=group)
    run.read(run.reading(), "s0", part)
    run.history.deciding(group)
    run.history.decided(group, Outcome.OK)
    assert run.kinds() == {"early read"}


def test_an_event_in_the_wrong_stream():
    run = Run()
    one = run.write(1)
    other = run.history.reading("scope/other", "r")
    run.read(other, "s0", one)
    run.read(run.reading(), "s0", one)
    assert run.kinds() == {"wrong stream"}


def counter(run, value, outcome, key="c"):
    step = run.history.increment("t", key, value)
    run.history.incremented(step, outcome)


def look(run, value, key="c"):
    begun = run._tick()
    run.history.looked("t", {key: value}, begun)


def test_clean_counters():
    run = Run()
    counter(run, 1, Outcome.OK)
    counter(run, 2, Outcome.UNKNOWN)
    counter(run, 2, Outcome.FAILED)
    look(run, 2)
    counter(run, 3, Outcome.OK)
    look(run, 3)
    assert run.kinds() == set()


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(lambda run: (counter(run, 1, Outcome.OK), counter(run, 1, Outcome.OK)), id="set twice"),
        pytest.param(lambda run: (counter(run, 1, Outcome.OK), look(run, 0)), id="acknowledged, then gone"),
        pytest.param(lambda run: (counter(run, 1, Outcome.UNKNOWN), look(run, 1), look(run, 0)), id="seen, then gone"),
    ],
)
def test_a_lost_update(steps):
    run = Run()
    steps(run)
    assert run.kinds() == {"lost update"}


def test_a_counter_that_nobody_set():
    run = Run()
    counter(run, 1, Outcome.OK)
    counter(run, 2, Outcome.FAILED)
    look(run, 2)
    assert run.kinds() == {"phantom"}


def sight(run, **found):
    run.history.sight("s", run._tick(), **found)


def test_a_clean_life():
    run = Run()
    run.history.fact("s", "created")
    sight(run, exists=True)
    run.history.fact("s", "sealed", 10)
    run.history.fact("s", "truncated", 4)
    sight(run, exists=True, sealed=True, start=4, length=10)
    run.history.fact("s", "deleting")
    sight(run, exists=True, sealed=True, start=4, length=10)
    sight(run, exists=False)
    run.history.fact("s", "deleted")
    sight(run, exists=False)
    assert run.kinds() == set()


def test_forgotten_acknowledgements():
    run = Run()
    run.history.fact("s", "created")
    sight(run, exists=False)
    assert run.kinds() == {"forgotten create"}
    run = Run()
    run.history.fact("s", "sealed", 10)
    sight(run, exists=True, sealed=False, length=10)
    assert run.kinds() == {"forgotten seal"}
    run = Run()
    run.history.fact("s", "sealed", 10)
    sight(run, exists=True, sealed=True, length=11)
    assert run.kinds() == {"forgotten seal"}
    run = Run()
    run.history.fact("s", "deleting")
    run.history.fact("s", "deleted")
    sight(run, exists=True)
    assert run.kinds() == {"forgotten delete"}


def test_a_head_that_moves_back():
    run = Run()
    run.history.fact("s", "truncated", 5)
    sight(run, exists=True, start=4, length=9)
    assert run.kinds() == {"head moved back"}
    run = Run()
    sight(run, exists=True, start=5, length=9)
    sight(run, exists=True, start=4, length=9)
    assert run.kinds() == {"head moved back"}
    run = Run()
    run.history.head(STREAM, {0: 10, 1: -1})
    run.history.head(STREAM, {0: 9, 1: 0})
    assert run.kinds() == {"head moved back"}
    run = Run()
    for positions in ({0: 10}, {1: 0}, {0: 10}):
        run.history.head(STREAM, positions)
    assert run.kinds() == {"head moved back"}


def test_what_an_actor_saw_is_reported_as_it_is():
    run = clean_run()
    run.history.violation("leased chunk deleted", "0/1-1-0")
    assert run.kinds() == {"leased chunk deleted"}
