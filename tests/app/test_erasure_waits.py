"""An erasure that cannot go on reports why within seconds, and goes on by itself when it can."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence

import pytest
from erasure_events import events_of, fill, hits_of
from msgspec import UNSET

import penstock
from penstock.app import tier2
from penstock.controller.erasure.attempts import Attempts, cause_of
from penstock.model.errors import (
    CorruptDataError,
    ErasureWaitsError,
    FencedError,
    NotConnectedError,
    StorageFullError,
)
from penstock.ports.files import File, FileWrite
from penstock.storage.machine.files import RealFiles

ASKED = {"who": "ann", "why": "x", "erasure": "e"}


class FullFiles(RealFiles):
    """Files of a tier 2 that can be full: then no file is created and none grows."""

    full = False

    async def open(self, path: str, *, create: bool = False, direct: bool = False) -> File:
        if self.full and create:
            raise StorageFullError("disk is full", file=path)
        return await super().open(path, create=create, direct=direct)

    async def write_together(self, writes: Sequence[FileWrite]) -> Sequence[Exception | None]:
        if self.full:
            return [StorageFullError("disk is full", file=write.path) for write in writes]
        return await super().write_together(writes)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(tier2, "RealFiles", FullFiles)
    monkeypatch.setattr(FullFiles, "full", False)
    (tmp_path / "tier2").mkdir()
    with penstock.open(tmp_path / "data", tier2=str(tmp_path / "tier2")) as opened:
        yield opened
        FullFiles.full = False


def test_a_decided_erasure_without_space_is_reported_and_goes_on_when_there_is_some(store):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream, 200)
    hits = hits_of(events_of(stream))
    segments = store._inner.segments
    real = segments.erase

    async def filled(*args, **named):
        FullFiles.full = True  # The disk fills up right after the decision.
        segments.erase = real
        return await real(*args, **named)

    segments.erase = filled
    began = time.monotonic()
    with pytest.raises(ErasureWaitsError) as caught:
        stream.erase(hits, **ASKED)
    assert time.monotonic() - began < 8
    assert (caught.value.fields["erasure"], caught.value.fields["cause"]) == ("e", "no space")
    state = stream.erasures.show("e")
    assert (state.state, state.cause, state.receipt) == ("asked", "no space", None)
    assert "full" in state.waits_for
    FullFiles.full = False
    assert stream.erasures.wait("e")["where"]["events"] == len(hits)
    assert stream.erase(hits, **ASKED)["where"]["events"] == len(hits)
    assert hits_of(events_of(stream)) == []
    assert stream.erasures.show("e").waits_for is UNSET


def test_an_erasure_that_cannot_be_recorded_fails_within_seconds_and_decides_nothing(store):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream, 200)
    before = events_of(stream)
    FullFiles.full = True
    began = time.monotonic()
    with pytest.raises(StorageFullError, match="free space and repeat") as caught:
        stream.erase(hits_of(before), **ASKED)
    assert time.monotonic() - began < 8
    assert caught.value.fields["erasure"] == "e"
    assert events_of(stream) == before
    FullFiles.full = False
    store._thread.call(store._inner.segments.flush())
    assert stream.erase(hits_of(before), **ASKED)["where"]["events"] == len(hits_of(before))


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (StorageFullError("disk is full"), "no space"),
        (OSError(errno.ENOSPC, "no space left"), "no space"),
        (CorruptDataError("block fails its checksum"), "damage"),
        (NotConnectedError("worker is down"), "unavailable"),
        (FencedError("fenced"), "unavailable"),
        (OSError(errno.EIO, "i/o"), "error"),
        (RuntimeError("defect"), "error"),
    ],
)
def test_each_failure_has_a_cause(error, cause):
    assert cause_of(error) == cause


def test_a_failure_is_over_once_an_attempt_gets_further():
    attempts = Attempts()
    for tries in (1, 2, 3):
        for segment in range(2):
            attempts.reached("e", segments=segment, of=4)
        attempts.failed("e", OSError("away"))
        assert attempts.fields("e")["tries"] == tries
    attempts.reached("e", segments=2, of=4)
    assert "waits_for" not in attempts.fields("e")
    attempts.reached("e", segments=4, of=4, is_log=True)
    attempts.failed("e", OSError("away"))
    attempts.reached("e", segments=0, of=4)
    assert attempts.fields("e")["tries"] == 1
    attempts.ended("e")
    assert attempts.fields("e") == {}
