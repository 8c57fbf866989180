"""An error about a name says of what kind of thing it is, and where its limit is, at each door that takes new names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args
from uuid import UUID

import pytest

import penstock
from penstock.client.blocking.stores import Store
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidNameError
from penstock.model.names import NameKind, StreamName, check_name
from penstock.model.policies import ReaderGroupRetention
from penstock.model.segments import SegmentId
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.tables import TableConfig
from penstock.spark.jobs.lake.job import LakeRequest
from penstock.spark.jobs.table import TableRequest
from penstock.spark.lake.opening import TableAddress
from penstock.spark.options import parse_read

LIMITS: dict[NameKind, int] = {"scope": 255, "stream": 250, "reader group": 247, "table": 250, "subscriber": 250}
ILLEGAL = ["a b", "a_b", "_a", "\u00e4", "..", ""]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with penstock.open(tmp_path_factory.mktemp("names") / "data") as opened:
        opened.create_stream("s/t", create_scope=True)
        yield opened


def group(name: str) -> ReaderGroupConfig:
    cuts = {StreamName("s", "t"): StreamCut(StreamName("s", "t"), {SegmentId(0): 0})}
    retention = ReaderGroupRetention.MANUAL
    return ReaderGroupConfig(scope="s", name=name, id=UUID(int=1), retention=retention, start_cuts=cuts)


DOORS: dict[str, tuple[NameKind, Callable[[Store, str], object]]] = {
    "scope": ("scope", lambda store, name: store.create_scope(name)),
    "stream": ("stream", lambda store, name: store.create_stream(f"s/{name}")),
    "group": ("reader group", lambda store, name: store.reader_group(f"s/{name}", ["s/t"])),
    "group, controller": (
        "reader group",
        lambda store, name: store._thread.call(store._inner.controller.groups.create(group(name))),
    ),
    "table": ("table", lambda store, name: store.create_table(f"s/{name}", primary_key_bytes=4)),
    "table, controller": (
        "table",
        lambda store, name: store._thread.call(
            store._inner.controller.tables.create(
                "s", name, TableConfig(partitions=1, primary_key_bytes=4, secondary_key_bytes=0, rollover_bytes=0)
            )
        ),
    ),
    "option subscriber": ("subscriber", lambda store, name: parse_read({"path": "s/t", "subscriber": name})),
    "subscriber of a table": (
        "subscriber",
        lambda store, name: TableRequest(read={"path": "s/t"}, key="k", directory=Path("t"), subscriber=name).checked(),
    ),
    "subscriber of a lake table": (
        "subscriber",
        lambda store, name: LakeRequest(
            read={"path": "s/t"}, address=TableAddress(format="delta", target="/t"), subscriber=name
        ).checked(),
    ),
}


def test_each_kind_of_name_has_a_door_here() -> None:
    assert {kind for kind, _ in DOORS.values()} == set(get_args(NameKind)) == set(LIMITS)


@pytest.mark.parametrize("door", list(DOORS))
def test_an_illegal_name_is_refused_with_the_noun_of_its_kind(store: Store, door: str) -> None:
    kind, make = DOORS[door]
    for name in [*ILLEGAL, (LIMITS[kind] + 1) * "n"]:
        if not name and "controller" not in door:
            continue  # Then the form SCOPE/NAME is wrong, or the option is not set.
        with pytest.raises(InvalidNameError) as caught:
            make(store, name)
        assert caught.value.message.startswith(f"{kind} name is not legal: use 1 to {LIMITS[kind]} "), (door, name)


@pytest.mark.parametrize("kind", list(LIMITS))
def test_the_longest_name_is_legal(kind: NameKind) -> None:
    assert check_name(kind, LIMITS[kind] * "n")


def test_the_longest_name_of_a_group_makes_a_group(store: Store) -> None:
    assert store.reader_group("s/" + 247 * "g", ["s/t"])


@pytest.mark.parametrize("text", ["x", "a/", "/b", "a/b/c"])
def test_a_table_without_a_scope_is_called_a_table(store: Store, text: str) -> None:
    with pytest.raises(InvalidNameError, match="not a table; write SCOPE/TABLE"):
        store.table(text)
