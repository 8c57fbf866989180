"""What the README shows works as it stands."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_first_example_runs_as_printed(tmp_path):
    code = re.search(r"```python\n(import penstock.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code[1]], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1002, "a thousand events, what a change would take, and why nothing went"
    assert "subscriber shop/dashboards" in lines[-1]


def test_every_linked_file_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_command_line_shown_is_known():
    shown = re.findall(r"^\s+(?:echo .*\| )?penstock ([a-z]+)(?: ([a-z]+) [a-z]+/)?", README, re.MULTILINE)
    assert len(shown) >= 5
    for words in shown:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *(word for word in words if word), "--help"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
