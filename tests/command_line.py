"""The commands of ``penstock`` as a tree."""

from __future__ import annotations

from typing import Any

import typer

from penstock.app.cli.common.late import imported
from penstock.app.cli.main import app


def whole_tree() -> Any:
    """``penstock`` with all its commands imported, to walk through ``commands`` of each group."""
    root: Any = typer.main.get_command(app)
    for name, (place, _) in root.late.items():
        root.commands[name] = imported(name, place)
    return root
