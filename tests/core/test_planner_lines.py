"""The fast way through the planner's JSON: it decides as the slow model does, and answers as the explaining way does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from planner_lines import line_of
from retention_facts import apart_facts, check, some_facts

from penstock.core.planner_json import lines as retention_lines
from penstock.core.planner_json.lines import plan_lines, plan_text, read_line
from penstock.core.planner_json.requests import plan_line

FIRST_SEED = 1_000_000
ENCODE = json.JSONEncoder(ensure_ascii=False).encode


def explained(text: str) -> tuple[str, bool]:
    """What the explaining way answers."""
    plan = plan_line(text)
    return ENCODE(plan), "error" not in plan


def written(value: Any, random: Random) -> str:
    """The line in one of the ways that encoders write it."""
    spaced = random.random() < 0.5
    return json.dumps(value, ensure_ascii=random.random() < 0.5, separators=None if spaced else (",", ":"))


def seeded(seed: int) -> tuple[Random, Any, Any, int]:
    random = Random(FIRST_SEED + seed)
    return random, *(some_facts if seed % 4 else apart_facts)(random)


def hold_to_the_model(seeds: range) -> None:
    for seed in seeds:
        random, facts, world, now_ms = seeded(seed)
        text = written(line_of(facts, now_ms), random)
        try:
            found = read_line(text)
            # An undoubted line: else nothing of the fast way is looked at here.
            assert found is not None
            decision = check(found.facts, world, found.now_ms)
            answer = plan_text(text)
            assert answer == explained(text)
            assert json.loads(answer.text)["frees_bytes"] == decision.frees_bytes
        except Exception as error:
            error.add_note(f"seed={seed}")
            raise


@pytest.mark.parametrize("chunk", range(4))
def test_lines_are_decided_as_the_slow_model_decides_them(chunk: int) -> None:
    hold_to_the_model(range(chunk * 100, (chunk + 1) * 100))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(20))
def test_many_lines_are_decided_as_the_slow_model_decides_them(chunk: int) -> None:
    hold_to_the_model(range(1000 + chunk * 1000, 2000 + chunk * 1000))


# --- whatever a line is -------------------------------------------------------------------------------------------

ODD: list[Any] = [
    None, True, False, 0, 1, -1, -2, 1.0, 1e300, 0.5, "", "a:b", "0#0", "00#0", "\ud800", "é\u2028\t\"\\", [], {}, [1], ["a"],
    {"a": 1}, {"cut": {}}, {"cut": {"9#9": 1}}, {"0#0": 1}, [[]], 1 << 53, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 70,
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Each place in the value that something may stand at."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def with_another_value(line: Any, random: Random) -> None:
    path = random.choice(list(places(line)))
    at(line, path[:-1])[path[-1]] = random.choice(ODD)


def with_one_thing_less(line: Any, random: Random) -> None:
    path = random.choice(list(places(line)))
    del at(line, path[:-1])[path[-1]]


def with_one_name_more(line: Any, random: Random) -> None:
    objects = [path for path in places(line) if isinstance(at(line, path), dict)]
    at(line, random.choice([(), *objects]))[random.choice(["cut", "id", "more", "0#0", "a:b"])] = random.choice(ODD)


def with_a_changed_number(line: Any, random: Random) -> None:
    numbers = [path for path in places(line) if type(at(line, path)) in (int, float)]
    path = random.choice(numbers)
    at(line, path[:-1])[path[-1]] += random.choice([1, -1, 0.5, 1 << 60])


def with_an_odd_id_or_hold(line: Any, random: Random) -> None:
    line["id"] = random.choice(ODD)
    line["hold"] = random.choice(
        [None, True, False, {"id": "x:y", "until_ms": None}, [{"owner": "é"}, {"reason": "r: s"}]]
    )


def with_a_changed_letter(text: str, random: Random) -> str:
    place = random.randrange(len(text))
    letter = random.choice(
        ["x", ",", ":", "}", "\t", " ", "-", ".", "1e5", "NaN", "\\", "\\u003a", "\x00", "é", "\ufeff"]
    )
    return text[:place] + letter + text[place + random.randrange(2) :]


def with_a_name_twice(text: str, random: Random) -> str:
    name = random.choice(["low", "time_ms", "cut", "now_ms", "id", "size_bytes", "policy", "0#0", "epochs", "retain"])
    return text.replace(f'"{name}":', f'"{name}":{random.choice(["5", "null", "{}"])},"{name}":', 1)


CHANGES: list[Callable[[Any, Random], None]] = [
    with_another_value, with_another_value, with_one_thing_less, with_one_name_more, with_a_changed_number,
    with_an_odd_id_or_hold,
]  # fmt: skip


def test_whatever_a_line_is_both_ways_answer_alike() -> None:
    usable = unusable = fast = 0
    for seed in range(600):
        random, facts, _, now_ms = seeded(seed % 150)
        random.seed(seed)
        line = line_of(facts, now_ms)
        random.choice(CHANGES)(line, random)
        text = written(line, random)
        if seed % 5 == 0:
            text = random.choice([with_a_changed_letter, with_a_name_twice])(text, random)
        answer = plan_text(text)
        assert answer == explained(text), text
        usable += answer.usable
        unusable += not answer.usable
        fast += read_line(text) is not None
    assert min(usable, unusable) > 150
    # Most of what is odd and right is still no matter of doubt.
    assert fast > 0.6 * usable


def plain(**changes: Any) -> dict[str, Any]:
    return {
        "now_ms": 7000,
        "stream": {"epochs": [[{"segment": "0#0", "low": 0.0, "high": 1.0}]]},
        "policy": {"type": "size"},
        "tail": {"time_ms": 5, "size_bytes": (1 << 62) + 1, "cut": {"0#0": (1 << 62) + 1}},
        "subscribers": {"a:b": {"cut": {"0#0": (1 << 53) + 1}}},
        **changes,
    }


@pytest.mark.parametrize("line_id", ["x", "a:b", 'é"\\\t\u2028\U0001f600', "\x7f", None, 0, (1 << 53) + 1, 1 << 70, -5])
def test_what_is_echoed_and_every_number_survives(line_id: Any) -> None:
    text = json.dumps(plain(id=line_id))
    assert read_line(text) is not None
    answer = json.loads(plan_text(text).text)
    assert answer["id"] == line_id
    assert answer["truncate"] == {"0#0": (1 << 53) + 1}
    assert answer["frees_bytes"] == (1 << 53) + 1
    assert answer["record"]["size_bytes"] == (1 << 62) + 1


def test_a_sum_beyond_64_bits_is_written_out() -> None:
    most = (1 << 63) - 1
    epochs = [[{"segment": f"{n}#0", "low": n / 4, "high": (n + 1) / 4} for n in range(4)]]
    cut = {f"{n}#0": most for n in range(4)}
    text = json.dumps(
        plain(
            stream={"epochs": epochs},
            policy={"type": "time"},
            subscribers={"a": {"cut": cut}},
            tail={"time_ms": 1, "size_bytes": most, "cut": cut},
        )
    )
    assert read_line(text) is not None
    assert json.loads(plan_text(text).text)["frees_bytes"] == 4 * most
    assert plan_text(text) == explained(text)


def test_lines_are_answered_one_by_one_in_their_order() -> None:
    taken: list[int] = []

    def source() -> Iterator[str]:
        for number in range(3):
            taken.append(number)
            yield "{" if number == 1 else json.dumps(plain(id=number))

    answers = plan_lines(source())
    first = next(answers)
    assert (json.loads(first.text)["id"], first.usable, taken) == (0, True, [0])
    assert [item.usable for item in answers] == [False, True]


def test_what_is_remembered_of_policies_and_epochs_is_bounded_and_never_mixed() -> None:
    for number in range(1500):
        epochs = [[{"segment": f"{number}#0", "low": 0.0, "high": 1.0}]]
        cut = {f"{number}#0": 5000}
        text = json.dumps(
            plain(
                stream={"epochs": epochs},
                policy={"type": "size", "min": number},
                tail={"time_ms": 5, "size_bytes": 5000, "cut": cut},
                retention_set=[{"time_ms": 1, "size_bytes": 100, "cut": {f"{number}#0": 100}}],
                subscribers={"a": {"cut": cut}},
            )
        )
        answer = json.loads(plan_text(text).text)
        assert answer["candidate"] == {f"{number}#0": 5000 if number == 0 else 100}
    assert len(retention_lines._policies) <= 1024
    assert len(retention_lines._epochs) <= 1024


def test_a_large_text_of_epochs_is_not_remembered() -> None:
    count = 2000
    epochs = [[{"segment": f"{n}#0", "low": n / count, "high": (n + 1) / count} for n in range(count)]]
    cut = {f"{n}#0": n for n in range(count)}
    size = sum(cut.values())
    text = json.dumps(
        plain(stream={"epochs": epochs}, tail={"time_ms": 5, "size_bytes": size, "cut": cut}, subscribers={})
    )
    retention_lines._epochs.clear()
    assert plan_text(text) == explained(text)
    assert not retention_lines._epochs
