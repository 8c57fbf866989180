"""The data dictionary: its page is current, and a store in which every feature is used writes the rows that it lists."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from controller_world import QUIET, STREAM, config, cut_at, join, name_of, publish, scale_to, seg
from disks import Disks, write_events

import penstock
from penstock.codec import files
from penstock.codec.control import dictionary as control
from penstock.codec.control import key_parts
from penstock.codec.dictionary import Entry, Layout, entries_of
from penstock.codec.store import dictionary as container
from penstock.codec.store import layouts, rows
from penstock.controller import keys, retention_keys
from penstock.controller.controller import Controller
from penstock.controller.retention.points import Points
from penstock.controller.streams import numbers
from penstock.controller.transactions import batches
from penstock.core.streams.batch_memory import NAME_KEPT_MS
from penstock.model.callers import Caller, calling
from penstock.model.errors import ApprovalRequiredError
from penstock.model.identity import Identity
from penstock.model.names import StreamName, transaction_segment_name
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.queries import QuerySource
from penstock.model.retention import Backlog, Idle, OnExceed, PolicyDocument, Retain
from penstock.ports.control.transactions import PositionCommit, StreamTransaction
from penstock.ports.data.tables import TablePut
from penstock.segmentstore.store import SegmentStore
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.storage.memory.memory_objects import MemoryObjects

ROOT = Path(__file__).parents[2]
DAY_MS = 86_400_000
Row = tuple[str, bytes]

UNSEEN = {
    "txn-kept/{scope}/{stream}/{txn}": "only a repair of a damaged stream writes it: test_streams_made_again",
    "d{container}{uid}": "only for a segment with a damaged row: test_rebuild_aside",
    "d{container}{uid}{number}": "only for a segment with a damaged row: test_rebuild_aside",
    "audit-keys/{log}": "only if something is signed: test_evidence",
    "audit-checkpoint/{log}/{size}": "only if something is signed: test_evidence",
    "audit-policy": "only if the operator sets it: test_audit_chain",
    "erasures-policy": "only if the operator sets it: test_erasure_feed",
    "audit-tile/{log}/{tile}": "only after 256 audit entries: test_audit_chain",
    "q{container}{row}": "in snapshots of the catalogue only",
}
"""Rows that only damage or time brings about, and the tests that do."""


class Recorded:
    """Every row that is written, short-lived ones included: the controller's, and those of the containers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.controller: list[Row] = []
        self.containers: list[Row] = []
        commit = MemoryKeyValue.commit

        async def committed(keyvalue, puts, deletes=(), **ranges) -> None:
            puts = list(puts)
            self.containers += [(key.decode("latin-1"), value) for key, value in puts]
            await commit(keyvalue, puts, deletes, **ranges)

        monkeypatch.setattr(MemoryKeyValue, "commit", committed)
        for name in ("table_update", "table_change"):
            monkeypatch.setattr(SegmentStore, name, self._spied(getattr(SegmentStore, name)))

    def _spied(self, call):
        async def spied(store, table, changes):
            if table == keys.TABLE:
                puts = [item for item in changes if isinstance(item, TablePut)]
                self.controller += [(item.key.decode(), item.value) for item in puts]
            return await call(store, table, changes)

        return spied


def the_entry(key: str, entries: Sequence[Entry], parts) -> Entry:
    found = entries_of(key, entries, parts)
    assert len(found) == 1, (key, [entry.key for entry in found])
    return found[0]


def check_record(entry: Entry, key: str, value: bytes) -> None:
    """The record decodes, and its fields are those that the dictionary lists."""
    kind = entry.value
    if isinstance(kind, str):
        # A record of a deleted stream: what its own key would hold.
        _, scope, stream, _, first, rest = re.split("/", key + "/", maxsplit=5)
        usual = f"{first}/{scope}/{stream}/{rest}".rstrip("/")
        kind = the_entry(usual, control.TABLE, key_parts.PARTS).value
    if isinstance(kind, type):
        known = {name for name, _, _ in control.value_of(kind).fields}
        assert set(json.loads(value)) - {"v"} <= known, key
        kind.decode(value)


async def live(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use every feature that leaves rows."""
    async with disks.serving() as (store, controller):
        await controller.scopes.create("s")
        size = RetentionPolicy(type=RetentionType.SIZE, minimum=0)
        await controller.streams.create(STREAM, config(1, size))
        await write_events(store, name_of(seg(0, 0)), [40] * 20)
        await store.lease_chunks([name_of(seg(0, 0))], UUID(int=9), until_ms=disks.clock.ms + 1000)
        await policies_and_holds(controller, disks)
        await transactions(controller, disks, store, monkeypatch)
        await subscribers_and_truncations(controller, disks, store)
        await controller.cuts.note_time(STREAM, "w/1", 5)
        await controller.advance_watermarks()
        await erasures(controller, disks, store)
        await deletions(controller, disks, store, monkeypatch)
        await store.flush()
        await gaps(controller)
        await store.create_segment("s/leased")
        await store.lease_chunks(["s/leased"], UUID(int=9), until_ms=disks.clock.ms + 1000)
        await store.delete("s/leased")


async def policies_and_holds(controller: Controller, disks: Disks) -> None:
    for target in (None, "s", STREAM):
        await controller.policies.set(target, PolicyDocument(grace_s=600))
    await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h", until_ms=disks.clock.ms + 1000)
    await controller.holds.release("h", owner="o")
    with calling(Caller(identity=Identity(name="al", proof="password"))):
        await controller.approvals.require(None, ["release"])
        await controller.holds.add(STREAM, owner="o", reason="r", hold_id="needs", until_ms=disks.clock.ms + 1000)
        with pytest.raises(ApprovalRequiredError):
            await controller.holds.release("needs", owner="o")


async def transactions(
    controller: Controller, disks: Disks, store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = await controller.transactions.create(STREAM, lease_ms=10_000)
    await write_events(store, transaction_segment_name(name_of(seg(0, 0)), txn.id), [40] * 20)
    await controller.transactions.commit(STREAM, txn.id)
    shared = await controller.transactions.join(STREAM, UUID(int=3), lease_ms=10_000)
    await controller.transactions.abort(STREAM, shared.id)
    monkeypatch.setattr(batches, "NAMES_KEPT", 1)
    monkeypatch.setattr(batches, "FORGET_EVERY", 1)
    for _ in range(2):
        for number in range(3):
            source = QuerySource(query=f"q{number}", run="r")
            writer = f"w/{number}/{disks.clock.ms}"
            txn = await controller.transactions.create(STREAM, lease_ms=10_000)
            await controller.batches.commit(STREAM, writer=writer, batch=0, transactions=[txn.id], source=source)
        disks.clock.ms += NAME_KEPT_MS + DAY_MS


async def subscribers_and_truncations(controller: Controller, disks: Disks, store: SegmentStore) -> None:
    await join(controller, "g")
    await publish(controller, "g", {seg(0, 0): 48})
    txn = await controller.transactions.create(STREAM, lease_ms=10_000)
    group = await controller.groups.get("s", "g")
    commit = PositionCommit(scope="s", group="g", group_id=group.id, reader="r/1", id=UUID(int=4))
    await controller.transactions.commit_with_positions([StreamTransaction(stream=STREAM, id=txn.id)], commit)
    await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 48}))
    await controller.retention.undo_last(STREAM)
    disks.clock.ms += 700_000  # The undo protects what it has restored until the end of the grace.
    await controller.retention.run(STREAM)
    await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 48}))
    await controller.policies.set(
        STREAM,
        PolicyDocument(
            retain=Retain(min_bytes=0),
            backlog=Backlog(ttl_s=5, max_bytes=100, on_exceed=OnExceed.EVICT),
            idle=Idle(subscriber_s=1000),
            grace_s=600,
        ),
    )
    await controller.retention.run(STREAM)
    disks.clock.ms += 20_000
    await controller.retention.run(STREAM)
    disks.clock.ms += 1_000_000
    await controller.retention.run(STREAM)
    await controller.policies.set(STREAM, PolicyDocument(backlog=Backlog(max_bytes=1, on_exceed=OnExceed.REJECT)))
    await join(controller, "h")
    await controller.retention.run(STREAM)
    points = Points(controller._ctx)
    await points.note(STREAM, time_ms=1, size_bytes=2)
    await points.flush()
    await scale_to(controller, 2)


async def erasures(controller: Controller, disks: Disks, store: SegmentStore) -> None:
    other = StreamName("s", "e")
    await controller.streams.create(other, config(1))
    first = seg(0, 0)
    await write_events(store, name_of(first, other), [40] * 20)
    await store.flush()
    asked = {"erasure": "e1", "who": "a", "why": "b", "looked_for": {}}
    await controller.erasures.erase(other, asked, {first: [0]})
    while (await controller.erasures.get("e1")).state != "done":
        await asyncio.sleep(0)
    subject = {"by": "payload contains", "values": ["person"]}
    await controller.cases.open("c1", targets=[str(other)], subject=subject, who="a", why="b")
    await controller.cases.look("c1")


async def deletions(controller: Controller, disks: Disks, store: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await join(controller, "lake")
    group, source = await controller.groups.get("s", "lake"), QuerySource(query="table delta /t", run="1")
    cut = cut_at({seg(1, 1): 0, seg(1, 2): 0})
    await controller.subscribers.publish("s/lake", group_id=group.id, generation=0, cut=cut, source=source)
    await controller.streams.seal(STREAM)
    await controller.streams.delete(STREAM)
    monkeypatch.setattr(numbers, "NUMBERS_KEPT", 0)
    await numbers.forget_numbers(controller._ctx)
    await controller.groups.delete("s", "g")
    await controller.scopes.create("gone")
    await controller.scopes.delete("gone")


async def gaps(controller: Controller) -> None:
    await asyncio.gather(*(controller.scopes.create(f"n{number}") for number in range(3)))
    await asyncio.gather(
        *(controller.policies.set(f"n{number}", PolicyDocument(grace_s=number)) for number in range(3))
    )
    await controller.drain_audit()


def test_a_store_in_which_every_feature_is_used_writes_the_rows_of_the_dictionary(monkeypatch) -> None:
    recorded = Recorded(monkeypatch)
    disks = Disks(replace(QUIET, audit_outbox_max=1, deletion_grace_ms=DAY_MS, bucket_lease_ms=1000))
    disks.objects = MemoryObjects()

    async def run() -> None:
        await live(disks, monkeypatch)
        async with disks.serving() as (store, _):
            entries = await store.table_scan(keys.TABLE, after=None, limit=10_000)
            recorded.controller.extend((entry.key.decode(), entry.value) for entry in entries)

    asyncio.run(run())
    seen: set[str] = set()
    for key, value in recorded.controller:
        entry = the_entry(key, control.TABLE, key_parts.PARTS)
        check_record(entry, key, value)
        seen.add(entry.key)
    stored = zip(disks.keyvalue._keys, map(disks.keyvalue._values.get, disks.keyvalue._keys), strict=True)
    for key, value in [*recorded.containers, *((key.decode("latin-1"), value) for key, value in stored)]:
        entry = the_entry(key, container.ROWS, container.PARTS)
        if isinstance(entry.value, Layout):
            assert len(value) >= 8 or entry.value is layouts.STORE, key
        seen.add(entry.key)
    assert {entry.key for entry in (*control.TABLE, *container.ROWS)} - seen == UNSEEN.keys()


def metadata_page() -> str:
    spec = importlib.util.spec_from_file_location("metadata_page", ROOT / "scripts" / "metadata_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.page()


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "formats" / "metadata.md").read_text(encoding="utf-8")
    assert page == metadata_page(), "run: python scripts/docs.py --reference"


def key_makers() -> dict[str, set[str]]:
    """By name of a function or constant that makes keys, the first parts of those keys."""
    found: dict[str, set[str]] = {}
    for module in (keys, retention_keys):
        for node in ast.parse(Path(module.__file__).read_text()).body:
            if isinstance(node, ast.FunctionDef):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            else:
                continue
            text = ast.unparse(node).replace("'", '"')
            for name in names:
                found.setdefault(name, set()).update(re.findall(r'[bf]"([a-z-]+)(?:/[^"]*)?"', text))
    return found


def kind_of(entry: Entry) -> str:
    return entry.key.split("/")[0]


def test_the_code_makes_the_keys_of_the_dictionary_and_no_others() -> None:
    made = set[str]().union(*key_makers().values())
    assert made == {kind_of(entry) for entry in control.TABLE}
    tags = {value.decode() for name, value in vars(rows).items() if name.startswith("TAG_")}
    assert tags == {entry.key[0] for entry in container.ROWS}


def source_of(writer: str) -> str:
    return (ROOT / "src/penstock" / (writer.replace(".", "/") + ".py")).read_text(encoding="utf-8")


def test_writers_are_modules_that_make_the_key() -> None:
    makers = key_makers()
    for entry in control.TABLE:
        names = "|".join(name for name, kinds in makers.items() if kind_of(entry) in kinds)
        for writer in entry.writers:
            assert re.search(rf"keys\.({names})\b", source_of(writer)), (entry.key, writer)
    for entry in (*container.ROWS, *files.FILES, *files.SEGMENTS):
        assert all(map(source_of, entry.writers)), entry.key


def test_the_files_of_a_store_are_in_the_dictionary(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        store.create_scope("s")
        stream = store.create_stream("s/t")
        with stream.writer() as writer:
            writer.write(b"x")
    found = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert len({the_entry(name, files.FILES, files.PARTS).key for name in found}) >= 7


@pytest.mark.parametrize("part", [key_parts.PARTS, container.PARTS, files.PARTS], ids=["control", "container", "files"])
def test_every_part_of_a_key_is_used(part) -> None:
    entries = (*control.TABLE, *container.ROWS, *files.FILES, *files.SEGMENTS)
    assert {name for entry in entries for name in re.findall(r"\{(\w+)\}", entry.key)} >= part.keys()
