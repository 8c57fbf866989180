"""The judge of runs with failures reports each kind of anomaly, and nothing else."""

from __future__ import annotations

from typing import Any

from penstock.core.segments.placement import container_of
from tests.cluster.failover_facts import (
    ELECTED,
    Counters,
    Probe,
    event_anomalies,
    first_after,
    parse_probes,
    percentile,
    totals,
    whole_lines,
)
from tests.cluster.failover_load import probe_stream
from tests.cluster.failover_places import PlacedEvent, parse_placed, place_anomalies


def test_only_events_sent_after_the_failure_show_that_a_container_is_back() -> None:
    probes = [Probe(0, 1, 9.9, 10.1), Probe(0, 2, 10.2, 10.3), Probe(0, 3, 11.0, 11.1), Probe(1, 1, 10.0, 14.5)]
    assert {one: round(took_s, 6) for one, took_s in first_after(probes, 10.0).items()} == {0: 0.3, 1: 4.5}
    assert first_after(probes, 12.0) == {}


def test_lines_that_are_still_being_written_are_not_there(tmp_path) -> None:
    assert whole_lines(tmp_path / "probes") == []
    (tmp_path / "probes").write_text("1 2 3.5 4.5\n1 3 4.")
    assert parse_probes(whole_lines(tmp_path / "probes")) == [Probe(1, 2, 3.5, 4.5)]
    assert parse_probes(["1 2 3.5 4.5"]) == []
    text = "first\nsecond\nthird\nfour"
    (tmp_path / "probes").write_text(text)
    for start in range(len(text) + 1):
        wanted = [line for line in ("first\n", "second\n", "third\n") if text.index(line) >= start]
        assert whole_lines(tmp_path / "probes", start) == wanted


def test_each_anomaly_of_events_is_counted() -> None:
    def nonzero(acked: list[str], found: list[str]) -> dict[str, int]:
        return {name: count for name, count in event_anomalies(acked, found).items() if count}

    assert nonzero(["a 0", "a 1"], ["a 0", "a 1", "a 2"]) == {}
    assert nonzero(["a 0", "a 1"], ["a 0"]) == {"lost": 1}
    assert nonzero(["a 0"], ["a 0", "a 2"]) == {"gaps": 1}
    assert nonzero([], ["a 1", "a 0"]) == {"out_of_order": 1}
    assert nonzero([], ["a 0", "a 0"]) == {"duplicated": 1, "out_of_order": 1}


def test_a_counter_lies_between_what_was_acknowledged_and_what_may_have_happened() -> None:
    counters = Counters.parse(["acked a 1 1.0\n", "acked a 2 2.0\n", "unknown a\n", "acked b 1 1.0\n"])
    assert counters.wrong({"a": 2, "b": 1}) == counters.wrong({"a": 3, "b": 1}) == []
    assert counters.wrong({"a": 4, "b": 1}) == ["a: 4 is not from 2 to 3"]
    assert counters.wrong({"a": 2}) == ["b: 0 is not from 1 to 1"]
    assert counters.wrong({"a": 2, "b": 1, "c": 1}) == ["c: 1 is not from 0 to 0"]


def test_a_read_is_stale_if_another_client_knew_more_before_it_began() -> None:
    def stale(*lines: str) -> list[str]:
        return Counters.parse(lines).stale

    assert stale("acked a 5 2.0\n", "read a 4 1.9 9.0\n", "read a 5 2.1 2.2\n", "read b 0 3.0 3.1\n") == []
    assert stale("acked a 5 2.0\n", "read a 4 2.1 9.0\n") == ["a: read 4 after 5"]
    assert stale("read a 4 3.0 3.1\n", "read a 5 1.0 2.0\n") == ["a: read 4 after 5"]


def test_percentiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, share) for share in (0.0, 0.2, 0.5, 0.99)] == [1.0, 1.0, 3.0, 5.0]


def test_each_container_has_a_probe_of_its_own() -> None:
    streams = [probe_stream(container, 16) for container in range(16)]
    assert [container_of(f"{stream}/0.#epoch.0", 16) for stream in streams] == list(range(16))
    assert len(set(streams)) == 16


def test_totals_of_several_runs_are_of_all_their_values() -> None:
    def run(seed: int, lost: int, status: int = 0, **seconds: list[float]) -> dict[str, Any]:
        return {
            "seed": seed,
            "load_status": status,
            "anomalies": {"lost": lost, "stale_reads": []},
            **dict.fromkeys(("acked", "read", "increments", "unknown_increments"), 10),
            "failures": {kind: [max(values)] for kind, values in seconds.items()} | {ELECTED: [4.0]},
            "takeovers": seconds,
        }

    found = totals([run(1, 0, killed=[1.0, 2.0]), run(2, 1, killed=[4.0], paused=[7.0]), run(3, 0, 1, paused=[5.0])])
    assert (found["runs"], found["failures"], found["takeovers"], found["acked"]) == (3, 4, 5, 30)
    assert found["with_anomalies"] == [2, 3]
    assert found["seconds_of_takeovers"]["killed"] == {"count": 3, "p50": 2.0, "p99": 4.0, "max": 4.0}
    assert found["seconds_of_failures"]["paused"] == {"count": 2, "p50": 5.0, "p99": 7.0, "max": 7.0}
    assert found["seconds_of_failures"][ELECTED]["count"] == 3
    assert found["seconds_of_all_takeovers"]["count"] == 5
    assert totals([])["takeovers"] == 0


def test_places_show_a_second_owner_and_what_is_gone() -> None:
    def placed(event: str, offset: int | None, sent_s: float, acked_s: float) -> PlacedEvent:
        return PlacedEvent(container=0, event=event, offset=offset, sent_s=sent_s, acked_s=acked_s)

    sound = [
        placed("a 0", 0, 1.0, 2.0),
        placed("b 0", 20, 1.5, 5.0),
        placed("a 1", 10, 3.0, 4.0),
        placed("a 2", None, 6, 7),
    ]
    there = {0: {0: "a 0", 10: "a 1", 20: "b 0", 30: "a 2"}}
    assert parse_placed([f"{one.line}\n" for one in sound]) == sound
    assert parse_placed([sound[0].line]) == []
    assert not any(place_anomalies(sound, there).values())
    # An owner that was deposed goes on at the place where its successor began.
    twice = place_anomalies([*sound, placed("z 7", 20, 2.0, 5.0)], there)
    assert twice["two_owners"] == ["container 0: b 0 and z 7 at 20"]
    assert twice["misplaced"] == ["container 0: z 7 at 20"]
    late = place_anomalies([*sound, placed("z 7", 15, 5.5, 6.0)], {0: there[0] | {15: "z 7"}})
    assert late["two_owners"] == ["container 0: z 7 at 15 after b 0 at 20"]
    assert place_anomalies(sound, {0: {}})["misplaced"] == [
        f"container 0: {one.event} at {one.offset}" for one in sound[:3]
    ]
