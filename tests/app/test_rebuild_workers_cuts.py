"""Parts of tier 2 that are of different times still give a store that opens and serves, and the report names what is
missing."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from workers_disk import WORKERS, running
from workers_history import History, assemble, by_key, events, live, read_all, write

from penstock.app.integrity.rebuild import rebuild
from penstock.app.integrity.rebuild_report import RebuildReport
from penstock.model.policies import RetentionPolicy, RetentionType

PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return live(tmp_path_factory.mktemp("life"))


def check_order(lines: Sequence[str]) -> None:
    """Per key in order, each event once."""
    for key, found in by_key(lines).items():
        assert found == sorted(set(found)), (key, found)


def is_reported(report: RebuildReport, stream: str, newest_ms: int) -> bool:
    """Whether the report says that the stream can lack something."""
    found = report.streams
    mine = [item for item in found.streams if item["stream"] == stream]
    return (
        not mine
        or any(item["missing_bytes"] or item["as_of_ms"] is None or item["as_of_ms"] < newest_ms for item in mine)
        or any(item["stream"] == stream for item in found.unreachable)
        or any(item["segment"].startswith(f"{stream}/") for item in report.lost)
        or any(f" {stream}/" in said for said in found.made)
    )


async def _check(history: History, steps: Sequence[int], home: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await _check_serves(history, steps, home)


async def _check_serves(history: History, steps: Sequence[int], home: Path) -> None:
    report = await rebuild(str(assemble(history, steps, home / "tier2")), home / "new")
    times = [item["as_of_ms"] for item in report.containers if item["as_of_ms"] is not None]
    oldest, newest = min(steps), max(steps)
    async with running(home / "new") as opened:
        names = [f"s/{name}" for name in await opened.store.streams("s")]
        # The streams are those of one moment: that of the controller's table.
        assert names in history.streams[oldest : newest + 1]
        for name in names:
            description = await opened.store.stream(name).describe()
            found = await read_all(opened, name)
            check_order(found)
            assert set(found) <= set(history.upto(newest, name))
            if name != "s/b" or newest < 4:  # Nothing is truncated.
                missing = set(history.upto(newest, name)) - set(found)
                assert not missing or is_reported(report, name, max(times)), (name, steps, report.as_json())
                if all(name in known for known in history.streams[oldest : newest + 1]):
                    assert set(history.upto(oldest, name)) <= set(found), (name, steps)
            if not description.sealed:
                await write(opened, name, events(name, 90))
                again = await read_all(opened, name)
                check_order(again)
                assert set(again) == {*found, *events(name, 90)}
        for name in names:
            # Cuts that were recorded before can lie beyond what is there. They must not stop retention.
            stream = opened.store.stream(name)
            if not (await stream.describe()).sealed:
                await stream.update(retention=RetentionPolicy(type=RetentionType.SIZE, maximum=1))
                await stream.retention.run()
                await stream.retention.run()
                check_order(await read_all(opened, name))
                await write(opened, name, events(name, 91))
                assert set(events(name, 91)) <= set(await read_all(opened, name))
        await opened.store.create_stream("s/after", segments=2)
        await write(opened, "s/after", events("s/after", 1))
        await opened.tier()
    async with running(home / "new") as opened:
        assert len(await read_all(opened, "s/after")) == 40


@pytest.mark.parametrize("step", [0, 2, 4, 5])
def test_parts_of_one_moment_are_complete(step: int, history: History, tmp_path: Path) -> None:
    asyncio.run(_check(history, [step] * WORKERS, tmp_path))


def combinations() -> Sequence[tuple[int, ...]]:
    """All ways to take each part from one of four moments, in an order that differs early."""
    found = list(itertools.product((0, 2, 4, 5), repeat=WORKERS))
    random.Random(1).shuffle(found)
    return found


# Not by Hypothesis: it would repeat a failure many times to make it smaller, and each repetition is a store.
@pytest.mark.parametrize("steps", combinations()[:4])
def test_parts_of_different_moments_open_and_serve(steps: tuple[int, ...], history: History, tmp_path: Path) -> None:
    asyncio.run(_check(history, steps, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("steps", combinations()[4:])
def test_parts_of_all_moments_open_and_serve(steps: tuple[int, ...], history: History, tmp_path: Path) -> None:
    asyncio.run(_check(history, steps, tmp_path))
