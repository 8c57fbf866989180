"""The examples run, and print what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("quickstart.py", "reading 9"),
        ("reader_group_retention.py", "left after publication: 0 bytes"),
        ("transactions.py", "['debit alice 10', 'credit bob 10']"),
    ],
)
def test_an_example_does_what_it_says(name, expected):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
