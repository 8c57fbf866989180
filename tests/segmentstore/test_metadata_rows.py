"""Changed rows over a store, against a plain map; commits may fail or be overtaken."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import StorageFullError
from penstock.segmentstore.metadata import MetadataRows
from penstock.storage.memory_keyvalue import MemoryKeyValue

KEYS = [prefix + suffix for prefix in (b"a", b"b", b"c") for suffix in (b"", b"1", b"2", b"\xff")]
KEY = st.sampled_from(KEYS)
CHANGE = st.one_of(
    st.tuples(st.just("put"), KEY, st.binary(min_size=1, max_size=2)),
    st.tuples(st.just("delete"), KEY),
    st.tuples(st.just("delete_range"), st.sampled_from([(b"a", b"b"), (b"b", b"c"), (b"c", b"d")])),
)
STEP = CHANGE | st.tuples(st.sampled_from(["commit", "fail"]), st.lists(CHANGE, max_size=4))


class Store(MemoryKeyValue):
    """Lets the test act while a commit is in flight, and may fail it, before or after it took effect."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile = None
        self.fails = False

    async def commit(self, puts, deletes=(), *, delete_ranges=()) -> None:
        if self.meanwhile is not None:
            await self.meanwhile()
        if self.fails:
            raise StorageFullError("no room")
        await super().commit(puts, deletes, delete_ranges=delete_ranges)


def change(rows: MetadataRows, model: dict[bytes, bytes], kind: str, *arguments) -> None:
    getattr(rows, kind)(*arguments)
    if kind == "put":
        model[arguments[0]] = arguments[1]
    elif kind == "delete":
        model.pop(arguments[0], None)
    else:
        start, end = arguments[0]
        for key in [key for key in model if start <= key < end]:
            del model[key]


async def check(rows: MetadataRows, model: dict[bytes, bytes]) -> None:
    assert await rows.get_many(KEYS) == [model.get(key) for key in KEYS]
    assert await rows.scan_all((b"", b"\xff")) == sorted(model.items())
    assert (
        await rows.scan((b"a1", b"c"), limit=3)
        == sorted((key, value) for key, value in model.items() if b"a1" <= key < b"c")[:3]
    )


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEP, max_size=15))
def test_reads_see_all_changes_and_a_commit_takes_them_all(steps) -> None:
    async def main() -> None:
        store = Store()
        rows, model = MetadataRows(store), {}
        for step in steps:
            if step[0] not in ("commit", "fail"):
                change(rows, model, *step)
                continue

            async def meanwhile(changes=step[1]) -> None:
                for item in changes:
                    change(rows, model, *item)
                    await check(rows, model)

            store.meanwhile, store.fails = meanwhile, step[0] == "fail"
            try:
                await rows.commit()
            except StorageFullError:
                assert store.fails
            store.meanwhile, store.fails = None, False
            await check(rows, model)
        await check(rows, model)
        await rows.commit()
        assert not rows.changed
        assert rows.changed_bytes == 0
        assert dict(store._values) == model

    asyncio.run(main())
