"""The measuring of bounds also runs with a small share of the full counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.bounded_memory import recovery
from bench.bounded_report import Bench

pytestmark = pytest.mark.server


@pytest.mark.parametrize("scale", [0.0001, 0.001])
def test_a_small_log_is_recovered_in_full(scale: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recovery(Bench(directory=tmp_path, memory_bytes=512 << 20, scale=scale, seconds=1.0))
    assert "wall until it serves" in capsys.readouterr().out
