"""The short form of ``python -m tests.fuzz``: every decoder, a few thousand inputs, and inputs that once broke one."""

import pytest

from tests.fuzz import runner
from tests.fuzz.mutate import Mutator
from tests.fuzz.runner import check, run
from tests.fuzz.targets import Target, targets

TARGETS = {target.name: target for target in targets()}
EXECUTIONS = 3_000

ONCE_BROKE = {
    "audit entry: nested too deep": ("metadata", b'{"v":' + b"[" * 3000),
    "audit entry: version is text": ("metadata", b'{"v":""}'),
    "stream: retention is text": (
        "metadata",
        b'{"v":1,"state":"active","config":{"scaling":["fixed",0,0,1],"retention":""}}',
    ),
    "Pulsar: a number beyond any float": ("pulsar", b"w" + b"9" * 400),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_decoder_answers_anything_in_bounded_time_and_memory(name):
    report = run(TARGETS[name], executions=EXECUTIONS, seed=1)
    assert [find.what for find in report.finds] == []
    assert report.executions == EXECUTIONS
    assert report.decoded > EXECUTIONS // 100, "mutations that are never taken reach nothing"


@pytest.mark.parametrize("case", ONCE_BROKE)
def test_what_once_broke_a_decoder_is_refused(case):
    name, data = ONCE_BROKE[case]
    # The first byte selects the record: each decoder gets the input.
    inputs = [bytes([index]) + data for index in range(64)] if name == "metadata" else [data]
    for one in inputs:
        assert check(TARGETS[name], one)[1] is None


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "metadata"])
def test_the_corpus_is_of_inputs_that_decode(name):
    for data in TARGETS[name].corpus:
        assert check(TARGETS[name], data) == (True, None), data[:80]


def test_the_same_seed_gives_the_same_inputs():
    corpus = TARGETS["wire"].corpus
    first, second = Mutator(5), Mutator(5)
    assert [first.mutated(corpus[0], corpus, text=False) for _ in range(200)] == [
        second.mutated(corpus[0], corpus, text=False) for _ in range(200)
    ]


def test_an_error_that_is_not_documented_and_an_input_that_takes_long_are_finds(monkeypatch):
    def broken(data):
        if b"\x00" in data:
            raise KeyError("a decoder's bug")

    target = Target(name="broken", run=broken, corpus=[b"abc\x01"], errors=(ValueError,))
    report = run(target, executions=1_000, seed=3)
    assert ["KeyError" in find.what for find in report.finds] == [True]

    def slow(data):
        sum(range(200_000))

    monkeypatch.setattr(runner, "SLOWEST_S", 0.0005)
    report = run(Target(name="slow", run=slow, corpus=[b"a"], errors=()), executions=1, seed=3)
    assert "took" in report.finds[0].what
