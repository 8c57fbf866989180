"""What the controller logs of background work that fails: a traceback only where somebody must look for a bug."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.controller.tasks import OwnedTasks
from penstock.model.errors import ContainerOfflineError, InternalError, SessionEndedError, UnavailableError


@pytest.mark.parametrize(
    ("failure", "is_bug"),
    [
        (SessionEndedError("planted"), False),
        (ContainerOfflineError("planted"), False),
        (UnavailableError("planted"), False),
        (InternalError("planted"), True),
        (RuntimeError("planted"), True),
    ],
)
@pytest.mark.parametrize("is_left", [False, True], ids=["background", "left by its caller"])
def test_work_that_a_deposed_controller_leaves_is_logged_in_one_line(
    failure: Exception, is_bug: bool, is_left: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        tasks, goes_on = OwnedTasks(), asyncio.Event()

        async def work() -> None:
            await goes_on.wait()
            raise failure

        if is_left:
            caller = asyncio.ensure_future(tasks.run(work()))
            await asyncio.sleep(0)
            caller.cancel()
            await asyncio.wait({caller})
        else:
            tasks.start(work())
        goes_on.set()
        while not caplog.records:
            await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING, logger="penstock.controller.tasks"):
        asyncio.run(main())
    (record,) = caplog.records
    assert bool(record.exc_info) == is_bug
