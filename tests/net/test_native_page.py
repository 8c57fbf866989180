"""The page of the gRPC port and the calls are the same."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from penstock.net.native.calls import control_calls, segment_calls

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "native-api.md"


def test_the_page_lists_every_call_with_its_parameters() -> None:
    rows = dict(re.findall(r"^\| `(\w+\.\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    calls = [call for calls in control_calls().values() for call in calls.values()]
    expected = {
        call.name: ", ".join(f"`{name}`" for name in list(inspect.signature(call.declared).parameters)[1:])
        for call in [*calls, *segment_calls().values()]
    }
    assert rows == expected
