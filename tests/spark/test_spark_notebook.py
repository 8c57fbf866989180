"""The notebook among the examples is made from its Python file, and it runs in a Jupyter kernel."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbclient import NotebookClient

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
@pytest.mark.slow
def test_the_notebook_runs_in_a_kernel_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # A kernel of this Python, whatever is installed on the machine; its server and Spark leave nothing elsewhere.
    kernels = tmp_path / "jupyter" / "kernels" / "python3"
    kernels.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernels.joinpath("kernel.json").write_text(json.dumps({"argv": argv, "display_name": "here", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    client = NotebookClient(notebook, timeout=400, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute(start_new_session=True)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) >= 8
    printed = "".join(output.get("text", "") for cell in code for output in cell.outputs)
    assert "5000 events became 20 rows" in printed
    assert "1 event more in the table, 0 bytes left" in printed
    assert not list(tmp_path.glob("penstock-notebook-*"))
