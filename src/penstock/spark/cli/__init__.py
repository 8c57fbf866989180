"""``penstock spark …``: the jobs of ``penstock.spark.jobs`` as commands, each with progress, a report and ``--dry-run``.

Each module parses the options of one job, runs it and prints its report; ``session`` has what all of them share.
Imports ``spark.jobs`` and, for output, ``app.cli``. Start reading at ``session``.
"""

from __future__ import annotations

import typer

from penstock.spark.cli import archive, audit, erase, export, fleet, lake, load, scrub, table

app = typer.Typer(
    name="spark",
    help="Jobs that run on Spark, on this machine or with --master on a cluster.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


@app.callback()
def jobs() -> None:
    """Jobs that run on Spark, on this machine or with --master on a cluster."""


app.command("load")(load.load)
app.command("export")(export.export)
app.command("scrub")(scrub.scrub)
app.command("erase")(erase.erase)
app.command("table")(table.table)
app.command("lake")(lake.lake)
app.command("fleet")(fleet.fleet)
app.command("audit")(audit.audit)
app.command("archive")(archive.archive)
