"""A write to HDFS that was given up and ends late, which no real HDFS does on request."""

from __future__ import annotations

import asyncio
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.model.errors import UnavailableError
from penstock.storage.objects import hdfs_objects
from penstock.storage.objects.hdfs_objects import HdfsObjects, HdfsSettings


class SlowNamenode:
    """Files in memory. The first creation waits for ``go_on``."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.go_on, self.waits = Event(), True
        self.inner = self  # the object of the library below the client

    def create(self, path: str, options: Any) -> Any:
        if self.waits:
            self.waits = False
            assert self.go_on.wait(20)
        data = self.files[path] = bytearray()
        return SimpleNamespace(write=data.extend, hsync=lambda: None, close=lambda: None)

    def get_file_info(self, path: str) -> Any:
        if path not in self.files:
            raise FileNotFoundError(path)
        return SimpleNamespace(length=len(self.files[path]), isdir=False)

    def rename(self, source: str, target: str, replaces: bool) -> None:
        self.files[target] = self.files.pop(source)

    def delete(self, path: str) -> bool:
        return self.files.pop(path, None) is not None

    def read(self, path: str) -> Any:
        return self.get_file_info(path)  # asked only for what is not there yet

    def list_status(self, path: str, deep: bool) -> Any:
        raise FileNotFoundError(path)


def test_a_write_that_was_given_up_brings_nothing_and_erasures_wait_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    namenode = SlowNamenode()
    monkeypatch.setattr(hdfs_objects, "_client_of", lambda *_: namenode)
    objects = HdfsObjects("hdfs://here:1/p", settings=HdfsSettings(call_s=0.2, transfer_s=0.2, delete_s=0.2))

    async def main() -> None:
        with pytest.raises(UnavailableError, match="does not answer"):
            await objects.put("chunks/a", b"erased")
        with pytest.raises(UnavailableError, match="may hold what is to be erased"):
            await objects.check_wipe("chunks/a")
        namenode.go_on.set()
        async with asyncio.timeout(10):
            while not all(call.done() for call in objects._waiting):
                await asyncio.sleep(0.01)
        assert not namenode.files, "bytes came that nobody waits for"
        await objects.check_wipe("chunks/a")

    asyncio.run(main())
