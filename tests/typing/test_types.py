"""What users see of the types: the main calls, the examples and the code of the documents, with mypy and with pyright."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import get_type_hints

import pytest

import penstock
import penstock.client
from penstock.app.settings import EmbeddedOptions, EmbeddedSettings

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)

KNOWN = """
from __future__ import annotations
from collections.abc import Sequence
from typing import Any
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
import penstock
store: penstock.Store
stream: penstock.Stream
table: penstock.Table
events: Sequence[penstock.Event]
spark: SparkSession
frame: DataFrame
query: StreamingQuery
pulsar_routes: Any
RestServer: Any
controller: Any
segments: Any
clock: Any
readers_of: Any
move_readers: Any
"""
"""Names that the code of a page may use without a definition. Each block is checked by itself."""


def blocks_of(page: Path) -> list[str]:
    return [textwrap.dedent(code) for _, code in CODE.findall(page.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    """Modules to check: the calls beside this file, the examples, one module per page."""
    made = tmp_path_factory.mktemp("pages")
    found = [HERE / "main_calls.py", HERE / "refused_calls.py", *sorted((ROOT / "examples").glob("*.py"))]
    for number, page in enumerate(PAGES):
        blocks = blocks_of(page)
        if blocks:
            module = made / f"page_{number}_{re.sub(r'[^a-z]', '_', page.stem.lower())}.py"
            functions = [
                f"async def block_{index}() -> None:\n" + textwrap.indent(code, "    ")
                for index, code in enumerate(blocks)
            ]
            module.write_text("\n\n".join([KNOWN, *functions]))
            found.append(module)
    assert len(found) > 7
    return [str(path) for path in found]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)


def test_mypy_knows_the_types_of_all_that_users_call(files):
    done = run("mypy", "--strict", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    scale, create = [line.partition("Revealed type is ")[2] for line in done.stdout.splitlines() if "Revealed" in line]
    assert scale.startswith('"def (segments: int | None =, *, sealed: ')
    assert scale.endswith('ScaleResult"')
    assert create.startswith('"def (name: str | penstock.model.names.StreamName, *, segments: int =, ')
    assert create.endswith('penstock.client.blocking.stores.Stream"')


@pytest.mark.slow
def test_pyright_knows_the_types_of_all_that_users_call(files):
    done = run("pyright", "--pythonpath", sys.executable, "--outputjson", *files)
    assert done.stdout.startswith("{"), done.stderr + "\nrun `make setup`, which installs pyright"
    found = json.loads(done.stdout)
    scale, create = [item["message"] for item in found["generalDiagnostics"] if item["severity"] == "information"]
    assert 'Type of "stream.scale" is "(segments: int | None = None, *, sealed: Sequence[SegmentId] = (),' in scale
    assert scale.endswith(') -> ScaleResult"')
    assert 'is "(name: str | StreamName, *, segments: int = 1, retention: RetentionPolicy | None = None,' in create
    assert create.endswith(') -> Stream"')
    lines = [
        f"{item['file']}:{item['range']['start']['line'] + 1}: {item['message']}"
        for item in found["generalDiagnostics"]
        if item["severity"] != "information"
    ]
    assert not lines, "\n".join(lines)
    assert found["summary"]["filesAnalyzed"] == len(files)


@pytest.mark.parametrize("package", [penstock, penstock.client], ids=lambda package: package.__name__)
def test_names_for_type_checkers_are_those_at_run_time(package):
    tree = ast.parse(Path(package.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    checked = {
        item.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module.startswith("penstock")
        for item in node.names
    }
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)} | {"__version__"}
    assert checked.keys() == set(package.__all__) - defined
    assert len(package.__all__) == len(set(package.__all__))
    for name, home in checked.items():
        expected = getattr(importlib.import_module(home), name, None) or importlib.import_module(f"{home}.{name}")
        assert getattr(package, name) is expected


@pytest.mark.parametrize(
    ("options", "settings", "own"),
    [
        (EmbeddedOptions, EmbeddedSettings, {"data"}),
        (penstock.WriterOptions, penstock.WriterSettings, set()),
    ],
)
def test_keyword_options_are_the_fields_of_the_settings(options, settings, own):
    hints = get_type_hints(settings)
    assert get_type_hints(options) == {name: kind for name, kind in hints.items() if name not in own}
