"""The formats of a table."""

from __future__ import annotations

import pytest

from penstock.spark.lake.port import FORMATS


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)
