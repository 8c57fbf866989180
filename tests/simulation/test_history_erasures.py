"""The checker knows what erasure promises: a blank where the event was, at the same place, forever; and nothing else."""

from penstock.testing.simulation.checker import check
from penstock.testing.simulation.history import History

STREAM = "scope/stream"
SEGMENT = "scope/stream/0.#epoch.0"


class Run:
    """A history made by hand, a second per record: three acknowledged events in one segment."""

    def __init__(self, stream):
        self.now = 0.0
        self.history = History(self._tick, lambda _: None)
        self.stream = stream
        self.events, self.places, at = [], [], 0
        for number in range(3):
            data = b"event-%d" % number
            write = self.history.write(stream, "w", number, "k", data)
            self.history.acknowledged(write, segment=SEGMENT, offset=at)
            self.events.append(data)
            self.places.append((SEGMENT, at))
            at += 8 + len(data)

    def _tick(self):
        self.now += 1.0
        return self.now

    def erase(self, number=1, *, done=True):
        erasure = self.history.erasure("e", {self.places[number]: self.events[number]})
        if done:
            self.history.erased(erasure)
        return erasure

    def read(self, *shown, final=True, complete=True):
        """``shown`` by event: its bytes, others, or None where it is passed over."""
        reading = self.history.reading(self.stream, "reader")
        reading.final, reading.complete, reading.segments = final, complete, (SEGMENT,)
        for (segment, offset), data in zip(self.places, shown, strict=True):
            if data is not None:
                self.history.read(reading, segment, offset, data)

    def kinds(self):
        return {anomaly.kind for anomaly in check(self.history)}


ZEROS = bytes(7)


def test_who_reads_bytes_is_shown_zeros_of_the_same_length():
    run = Run(SEGMENT)
    run.read(*run.events)
    run.erase()
    run.read(run.events[0], ZEROS, run.events[2])
    assert run.kinds() == set()


def test_readers_of_ours_pass_over_what_was_erased():
    for number in range(3):
        run = Run(STREAM)
        run.read(*run.events)
        run.erase(number)
        run.read(*(None if index == number else data for index, data in enumerate(run.events)))
        assert run.kinds() == set()


def test_an_erased_event_at_the_end_of_a_segment_is_not_behind_those_of_its_successor():
    run = Run(STREAM)
    later = run.history.write(STREAM, "w", 3, "k", b"event-3")
    successor = "scope/stream/1.#epoch.1"
    run.history.acknowledged(later, segment=successor, offset=0)
    run.erase(2)
    reading = run.history.reading(STREAM, "reader")
    reading.final, reading.complete, reading.segments = True, True, (SEGMENT, successor)
    for (segment, offset), data in zip(run.places[:2], run.events[:2], strict=True):
        run.history.read(reading, segment, offset, data)
    run.history.read(reading, successor, 0, b"event-3")
    assert run.kinds() == set()


def test_before_the_receipt_it_may_show_or_not():
    run = Run(SEGMENT)
    run.erase(done=False)
    run.read(run.events[0], ZEROS, run.events[2])
    run.read(*run.events)
    assert run.kinds() == set()


def test_an_erased_event_that_is_back():
    for stream in (STREAM, SEGMENT):
        run = Run(stream)
        run.erase()
        run.read(*run.events)
        assert run.kinds() == {"erased event is back"}


def test_an_erased_event_that_is_back_in_part():
    run = Run(SEGMENT)
    run.erase()
    run.read(run.events[0], b"ev" + bytes(5), run.events[2])
    assert run.kinds() == {"erased event is back"}


def test_a_reader_that_had_begun_before_may_have_had_it_in_its_hands():
    run = Run(STREAM)
    reading = run.history.reading(STREAM, "early")
    run.erase()
    run.history.read(reading, *run.places[0], run.events[0])
    run.history.read(reading, *run.places[1], run.events[1])
    assert run.kinds() == set()


def test_zeros_that_nobody_has_asked_for():
    run = Run(SEGMENT)
    run.read(run.events[0], ZEROS, run.events[2])
    assert "phantom" in run.kinds()
    run.erase(0)
    assert "blank" in run.kinds()


def test_zeros_before_anybody_has_asked_for_them():
    run = Run(SEGMENT)
    run.read(run.events[0], ZEROS, run.events[2])
    run.erase()
    assert run.kinds() == {"blank"}


def test_a_refused_erasure_that_shows():
    run = Run(SEGMENT)
    run.history.not_erased(run.erase(done=False), "held")
    run.erase(2)
    run.read(run.events[0], ZEROS, ZEROS)
    assert "blank" in run.kinds()


def test_zeros_of_another_length():
    run = Run(SEGMENT)
    run.erase()
    run.read(run.events[0], bytes(6), run.events[2])
    assert "inconsistent offset" in run.kinds() or "phantom" in run.kinds()


def test_a_reader_of_ours_that_shows_zeros():
    run = Run(STREAM)
    run.erase()
    run.read(run.events[0], ZEROS, run.events[2])
    assert run.kinds() == {"blank"}


def test_what_was_not_erased_is_missed_as_ever():
    run = Run(STREAM)
    run.read(*run.events)
    run.erase(0)
    run.read(run.events[0], None, run.events[2])
    assert {"lost", "vanished", "skipped"} <= run.kinds()
