"""``penstock spark scrub``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.app.cli.common.options import DryRunOption
from penstock.app.cli.common.output import print_json
from penstock.app.cli.common.target import ControllerOption, JsonOption, default_controller
from penstock.app.cli.upkeep.scrub import DAMAGE_STATUS, damage_line
from penstock.core.units import counted, format_size
from penstock.model.names import StreamName, check_name
from penstock.spark.cli.session import ConfOption, MasterOption, show_progress, spark_session


def scrub(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCOPE[/STREAM]]", help="A scope or a stream; else the whole store.", show_default=False
        ),
    ] = None,
    findings: Annotated[
        Path | None,
        typer.Option(
            "--findings", metavar="FILE", help="Write what is found to this Parquet file.", show_default=False
        ),
    ] = None,
    controller: ControllerOption = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Verify every checksum and index of tier 2, as fast as the cluster reads it. Changes nothing.

    Prints the ranges of streams that cannot be read, how many events they hold, and which subscribers have not read them.
    The exit status is 7 if anything is damaged. To verify the log and the metadata, run: penstock scrub

    \b
    penstock spark scrub plant --master spark://host:7077
    """
    from penstock.spark.jobs.scrub import ScrubRequest
    from penstock.spark.jobs.scrub import scrub as run

    stream = StreamName.parse(what).checked() if what and "/" in what else None
    scope = check_name("scope", what) if what and stream is None else None
    request = ScrubRequest(controller=controller or default_controller(), scope=scope, stream=stream, findings=findings)
    with show_progress(quiet=json) as on_progress, spark_session("scrub", master=master, conf=conf) as spark:
        outcome = run(spark, request, on_progress=on_progress, dry_run=dry_run)
    if json:
        print_json(outcome.as_json())
    else:
        names = ("streams", "segments", "chunks", "indexes", "blocks")
        counts = ", ".join(f"{outcome.checked[name]:,} {name}" for name in names if outcome.checked.get(name))
        size = format_size(outcome.checked.get("bytes", 0))
        print(f"would read at most {size}: {counts}" if dry_run else f"read {size}: {counts or 'nothing'}")
        if not dry_run and not outcome.findings:
            print("everything is sound")
        for item in outcome.damage:
            print(f"  {damage_line(item)}")
        for entry in outcome.affected:
            ranges = ", ".join(f"{start}..{end}" for start, end in entry["ranges"])
            who = f"; not read yet by {', '.join(entry['subscribers'])}" if entry["subscribers"] else ""
            print(f"not readable: {entry['segment']}  offsets {ranges}, {counted(entry['events'], 'event')}{who}")
        for said in outcome.as_json()["advice"]:
            print(f"what to do: {said}")
    if outcome.findings:
        raise typer.Exit(DAMAGE_STATUS)
