"""The tutorials and guides do what they say: their blocks run in order, against one server each time.

Blocks of ``sh`` run, and those of ``python`` that begin with an import; one with a title is saved under that name.
``console`` shows what has to be typed elsewhere.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from penstock.testing.server import ServerProcess

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^ *```(sh|python)(?: title=\"(\S+)\")?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PAGES = (
    "tutorials/first-hour.md",
    "how-to/consumers.md",
    "how-to/erasure.md",
    "how-to/event-time.md",
    "how-to/move-from-kafka.md",
    "how-to/move-from-pravega.md",
    "how-to/pulsar-tools.md",
    "how-to/records-and-schemas.md",
    "how-to/replay.md",
    "how-to/retention-for-gdpr.md",
    "how-to/size-a-server.md",
    "how-to/transactions.md",
    pytest.param("tutorials/first-spark-pipeline.md", marks=pytest.mark.spark),
)
OLD_STREAM = """
penstock stream create plant/turbine --segments 2
for number in $(seq 100); do echo "{\\"sensor\\": \\"s$((number % 5))\\", \\"value\\": $number}"; done |
    penstock write plant/turbine --key .sensor
"""

# A page is some twenty commands, each a process: ten to thirty seconds.
pytestmark = [pytest.mark.server, pytest.mark.slow]


def program(page: str, places: Mapping[str, str]) -> str:
    """The blocks of the page as one program for bash, with the addresses of the page replaced."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, address in places.items():
        text = text.replace(name, address)
    parts = []
    for language, file, body in BLOCK.findall(text):
        code = textwrap.dedent(body)
        if language == "sh":
            parts.append(code)
        elif file or code.startswith("import"):
            parts.append(f"{f'cat > {file}' if file else 'python -'} <<'END'\n{code}END\n")
    return "".join(parts)


def run(script: str, server: ServerProcess, directory: Path) -> str:
    environment = os.environ | {
        "PENSTOCK_CONTROLLER": server.address,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ("bash", "-euxo", "pipefail", "-c", script),
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "server" / "store") as running:
        yield running


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_in_order(page: str, server: ServerProcess, tmp_path: Path) -> None:
    places = {"localhost:9090": server.address, "localhost:9091": f"127.0.0.1:{server.http_port}"}
    with ServerProcess(tmp_path / "old" / "store") if "pravega" in page else nullcontext() as old:
        if old is not None:
            run(OLD_STREAM, old, tmp_path)
            places["old-host:9090"] = old.address
        print(run(program(page, places), server, tmp_path))
