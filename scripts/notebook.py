"""Make the notebook among the examples from its Python file: ``python scripts/notebook.py``. Cells begin with ``# %%``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[1] / "examples" / "store-query-retention-erase.py"


def cells_of(text: str) -> list[dict[str, Any]]:
    """The cells in the form that notebooks keep them, without outputs. The same text gives the same cells."""
    found: list[dict[str, Any]] = []
    for number, part in enumerate(text.split("# %%")[1:]):
        mark, _, body = part.partition("\n")
        lines = body.strip("\n").split("\n")
        if mark.strip() == "[markdown]":
            lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
        source = [f"{line}\n" for line in lines[:-1]] + lines[-1:]
        cell: dict[str, Any] = {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": source}
        if mark.strip() != "[markdown]":
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        found.append(cell)
    return found


def notebook_of(text: str) -> str:
    """The notebook as the text of its file."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": cells_of(text),
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    EXAMPLE.with_suffix(".ipynb").write_text(notebook_of(EXAMPLE.read_text()))
