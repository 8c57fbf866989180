"""Calls that a type checker refuses: it reports a comment below that nothing needs. Checked by ``test_types.py``, never run.

Each ``type: ignore`` must be needed in mypy and in pyright.
"""

from __future__ import annotations

import penstock
import penstock.client


def refused(store: penstock.Store, stream: penstock.Stream, astream: penstock.AsyncStream) -> None:
    print(penstock.nonsense)  # type: ignore[attr-defined]
    print(penstock.client.nonsense)  # type: ignore[attr-defined]
    penstock.open("data", memory_byte=3)  # type: ignore[call-arg]
    penstock.open("data", memory_bytes="1GB")  # type: ignore[arg-type]
    penstock.open_async("data", memory_byte=3)  # type: ignore[call-arg]
    penstock.connect("localhost:9090", 3)  # type: ignore[call-arg]
    store.create_stream("a/s", 2)  # type: ignore[call-arg]
    store.create_stream("a/s", segment=2)  # type: ignore[call-arg]
    store.reader_group("a/g", ["a/s"], retention="never")  # type: ignore[arg-type]
    stream.nonsense()  # type: ignore[attr-defined]
    stream.head(1)  # type: ignore[call-arg]
    stream.truncate(7)  # type: ignore[arg-type]
    stream.delete(True)  # type: ignore[call-arg]
    stream.writer(block_byte=1 << 20)  # type: ignore[call-overload]
    stream.writer(block_bytes="1MB")  # type: ignore[call-overload]
    stream.transaction(block_byte=1 << 20)  # type: ignore[call-overload]
    astream.writer(block_byte=1 << 20)  # type: ignore[call-overload]
    stream.reader(on_truncated="ignore")  # type: ignore[call-overload]
    stream.writer().write(7)  # type: ignore[arg-type]
    stream.writer().write("event", 7)  # type: ignore[arg-type]
    stream.writer(serializer=penstock.TextSerializer()).write(b"x")  # type: ignore[arg-type]
    stream.reader(serializer=dict)  # type: ignore[call-overload]
    stream.erase([], who="ann")  # type: ignore[call-arg]
    stream.retention.holds.add(owner="legal")  # type: ignore[call-arg]
