"""Build the documentation site into ``build/site``.

The reference of the command line comes from ``--help``, docs/formats/metadata.md from the data dictionary,
docs/reference/metrics.md from the catalogue of metrics, tables of calls and types of answers from their declarations
(``call_pages``). ``--reference`` writes these generated pages alone.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from call_pages import included
from metadata_page import page
from metrics_page import page as metrics_page

from penstock.app.cli.main import app

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "build" / "docs"
METADATA = ROOT / "docs" / "formats" / "metadata.md"
METRICS = ROOT / "docs" / "reference" / "metrics.md"
WIDTH = 110


def commands(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    """The full name and the help text of ``command`` and of all commands below it, in the order of ``--help``."""
    yield context.command_path, command.get_help(context).strip()
    for name in getattr(command, "list_commands", lambda _: ())(context):
        _, inner, _ = command.resolve_command(context, [name])
        yield from commands(inner, inner.context_class(inner, info_name=name, parent=context, max_content_width=WIDTH))


def command_reference() -> str:
    """Markdown with a section for each command, as text that ``--help`` prints."""
    root = typer.main.get_command(app)
    context = root.context_class(root, info_name="penstock", terminal_width=WIDTH)
    return "".join(f"## {name}\n\n```text\n{text}\n```\n\n" for name, text in commands(root, context))


def main() -> int:
    GENERATED.mkdir(parents=True, exist_ok=True)
    (GENERATED / "cli.md").write_text(command_reference(), encoding="utf-8")
    for name, text in included().items():
        (GENERATED / name).write_text(text, encoding="utf-8")
    METADATA.write_text(page(), encoding="utf-8")
    METRICS.write_text(metrics_page(), encoding="utf-8")
    if "--reference" in sys.argv:
        return 0
    return subprocess.run(
        (str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--clean"), cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
