"""Errors on the command line are in the words of its users: no Python, no internal names, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.app.cli.main import app
from penstock.client.blocking.stores import Store
from penstock.core.cuts.check import check_not_before_head, check_range
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.model.errors import InvalidCutError, PenstockError, StreamSealedError
from penstock.model.names import StreamName
from penstock.model.segments import KeyRange, SegmentId, SegmentRange, make_segment_id, positions_text

PYTHON = re.compile(r"StreamCut|StreamName|SegmentId|[{}]|_kvtable|#epoch")
"""What only a programmer of the store would write."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("people") / "data"
    with penstock.open(place) as store:
        for name in ("s/t", "s/sealed"):
            store.create_stream(name, segments=2, create_scope=True)
            with store.stream(name).writer() as writer:
                writer.write_many([b"event"] * 4, list("abcd"))
        store.create_table("s/k", primary_key_bytes=2)
        store.stream("s/sealed").seal()
        store.reader_group("s/g", ["s/t"], retention="manual")
        store.reader_group("s/free", ["s/t"], retention="none")
        group = store.reader_group("s/read", ["s/t"], retention="manual")
        with group.reader("r") as reader:
            for _ in range(4):
                assert reader.read(timeout_s=10) is not None
            reader.commit()
    return place


@pytest.fixture
def store(data: Path) -> Iterator[Store]:
    with penstock.open(data) as opened:
        yield opened


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("read s/t --from 5#0:3_6#1:4", "cut=5#0:3 6#1:4"),
        ("read s/t --from 0#0:999_1#0:999", "beyond the tail"),
        ("stream truncate s/t --at 7#2:0 --reason r --yes", "never had. segment=7#2"),
        ("table put s/k ab v --if-version 3", "no such key. table=s/k"),
    ],
)
def test_an_error_has_no_python_and_no_internal_name(data: Path, words: str, expected: str) -> None:
    asked = [word.replace("_", " ") for word in words.split()]
    found = CliRunner().invoke(app, [*asked, "--data", str(data)])
    assert isinstance(found.exception, PenstockError), found.output
    assert expected in str(found.exception)
    assert not PYTHON.search(str(found.exception))


def test_a_key_of_another_version_names_the_table(store: Store) -> None:
    table = store.table("s/k")
    table.put(b"zz", b"v")
    with pytest.raises(PenstockError, match=r"key has another version\. table=s/k key=b'zz' expected=99 actual=0"):
        table.replace(b"zz", b"w", version=99)


def test_the_error_of_a_sealed_stream_says_what_is_possible(store: Store) -> None:
    sealed = store.stream("s/sealed")
    with pytest.raises(StreamSealedError, match="accepts no more events, write to another one"):
        sealed.transaction().__enter__()
    with (
        pytest.raises(StreamSealedError, match="accepts no more events, write to another one"),
        sealed.writer() as writer,
    ):
        writer.write(b"x")
    with pytest.raises(StreamSealedError, match="cannot be changed, only read or deleted"):
        sealed.truncate(sealed.tail())
    with pytest.raises(StreamSealedError, match="cannot be changed, only read or deleted"):
        sealed.scale(segments=3)


@pytest.mark.parametrize(
    ("group", "to", "expected"),
    [
        ("s/g", "earliest", "s/g stays where it is in s/t: it skips nothing and reads nothing again"),
        ("s/g", "latest", "s/g skips 52 B, 4 events of s/t"),
        # What was read and not acknowledged is not skipped, but may be deleted now.
        ("s/read", "latest", "s/read stays where it is in s/t, and acknowledges 52 B, 4 events"),
        ("s/read", "earliest", "s/read reads again 52 B, 4 events of s/t"),
        ("s/free", "latest", "s/free skips 52 B, 4 events of s/t"),
    ],
)
def test_a_reset_says_what_it_skips_and_reads_again(data: Path, group: str, to: str, expected: str) -> None:
    found = CliRunner().invoke(app, ["group", "reset", group, "--to", to, "--dry-run", "--data", str(data)])
    assert f"{expected}; nothing was changed" in found.output


def test_positions_in_errors_are_as_commands_print_and_read_them() -> None:
    name, early, late = StreamName("s", "t"), {SegmentId(0): 1}, {SegmentId(0): 7}
    whole = SegmentRange(segment=SegmentId(0), keys=KeyRange(low=0.0, high=1.0))
    history = StreamHistory(epochs=(EpochRecord(epoch=0, segments=(whole,)),))
    with pytest.raises(InvalidCutError, match="start=0#0:7 end=0#0:1"):
        check_range(name, history, late, early)
    with pytest.raises(InvalidCutError, match="head=0#0:7 cut=0#0:1"):
        check_not_before_head(name, history, early, late)
    assert positions_text({make_segment_id(1, 3): 7, SegmentId(0): 1}) == "0#0:1 3#1:7"
