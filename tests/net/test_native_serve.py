"""Calls that not every store offers."""

import asyncio
from collections.abc import Awaitable
from typing import cast

import pytest

from penstock.model.errors import UnsupportedError
from penstock.net.native.calls import segment_calls
from penstock.net.native.serve import answers
from penstock.net.workers.worker_segments import WorkerSegments
from penstock.ports.control.plane import ControlPlane


async def _await(answer: Awaitable[bytes]) -> bytes:
    return await answer


def test_a_store_with_several_workers_that_is_asked_for_a_scrub_names_the_commands_that_verify_it() -> None:
    # A call of the segment store does not use the controller.
    served = answers(cast(ControlPlane, None), WorkerSegments((), containers=1), store_id="")
    request = segment_calls()["scrub"].encode_request((None, 1000), {})
    with pytest.raises(UnsupportedError) as refused:
        asyncio.run(_await(served["segments.scrub"](request)))
    assert "penstock spark scrub" in str(refused.value)
    assert "--data" in str(refused.value)
