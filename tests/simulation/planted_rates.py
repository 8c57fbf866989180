"""Planted bugs of scaling by rate and of watermarks: each forgets what a crash or a silent writer makes matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from penstock.controller.scaling.loop import ScalingLoop
from penstock.controller.watermarks import advancing


def a_writer_that_is_behind_is_forgotten_at_once() -> Any:
    """The watermark follows the fastest writer, as in Pravega's server where no timeout is set."""
    return patch.object(advancing, "timeout_of", lambda _: 0)


def streams_that_scale_are_not_searched_after_a_start() -> Any:
    """A controller knows the streams that were changed since it started, and no others."""

    async def search(_: ScalingLoop) -> bool:
        return True

    return patch.object(ScalingLoop, "_search", search)


PLANTED: dict[str, Callable[[], Any]] = {
    item.__name__: item
    for item in (
        a_writer_that_is_behind_is_forgotten_at_once,
        streams_that_scale_are_not_searched_after_a_start,
    )
}
