"""The notebook among the examples is made from its Python file, and its cells run from top to bottom."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "store-query-retention-erase.ipynb"


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebook", ROOT / "scripts" / "notebook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notebook_is_what_its_python_file_says() -> None:
    assert NOTEBOOK.read_text() == maker().notebook_of(NOTEBOOK.with_suffix(".py").read_text())


@pytest.mark.spark
def test_the_cells_of_the_notebook_run_from_top_to_bottom(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 8
    out, errors = tmp_path / "out.txt", tmp_path / "errors.txt"
    # Files, not pipes: a cell that fails leaves its server behind, which would hold them open.
    with out.open("w") as stdout, errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", "\n".join(code)],
            stdout=stdout,
            stderr=stderr,
            env=os.environ | {"TMPDIR": str(tmp_path), "SPARK_LOCAL_DIRS": str(tmp_path)},
            cwd=tmp_path,
            start_new_session=True,
        )
        try:
            status = process.wait(400)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert status == 0, errors.read_text()[-3000:]
    told = out.read_text()
    assert "5000 events became 20 rows" in told
    assert "1 event more in the table, 0 bytes left" in told
    assert not list(tmp_path.glob("penstock-notebook-*"))
