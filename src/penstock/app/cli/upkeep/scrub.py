"""``penstock scrub``."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from penstock.app.cli.common.options import SIZES, EndpointOption, InsecureOption
from penstock.app.cli.common.output import ProgressLine, print_json
from penstock.app.cli.common.target import ControllerOption, DataOption, JsonOption, default_controller
from penstock.app.integrity.report import ScrubReport, advice, affected, scrub_all
from penstock.core.units import counted, format_size, parse_size
from penstock.model.damage import Damage
from penstock.model.errors import InvalidArgumentError
from penstock.ports.integrity import ScrubPage

DAMAGE_STATUS = 7
_DIAL_S = 2.0
Page = Callable[[str | None, int], Awaitable[ScrubPage]]


def scrub(
    controller: ControllerOption = None,
    data: DataOption = None,
    rate: Annotated[
        str, typer.Option("--rate", metavar="SIZE", help=f"Read no more than this per second. {SIZES}")
    ] = "50MiB",
    cursor: Annotated[
        str | None,
        typer.Option(
            "--cursor", metavar="CURSOR", help="Continue an earlier scrub, which printed it.", show_default=False
        ),
    ] = None,
    endpoint: EndpointOption = None,
    insecure: InsecureOption = False,
    json: JsonOption = False,
) -> None:
    """Verify every checksum: of a running store, or with --data of one that is not running. Changes nothing.

    Exit status 7 if something is damaged. If it is interrupted, it prints how to continue.

    \b
    penstock scrub --rate 100MiB
    penstock scrub --data ./store
    """
    rate_bytes = parse_size(rate.removesuffix("/s"))
    if rate_bytes <= 0:
        raise InvalidArgumentError("the rate of a scrub must be above zero", rate=rate)
    if controller is not None and data is not None:
        raise InvalidArgumentError("give --controller or --data, not both")
    import asyncio

    report = ScrubReport(cursor=cursor)
    line = ProgressLine(quiet=json)

    def keep(so_far: ScrubReport) -> None:
        nonlocal report
        report = so_far
        line.show(_so_far_line(so_far))

    try:
        with line:
            if data is not None:
                report = asyncio.run(_offline(data, endpoint, insecure, rate_bytes, cursor, keep))
            else:
                report = asyncio.run(_online(controller or default_controller(), rate_bytes, cursor, keep))
    except KeyboardInterrupt:
        print(f"penstock: stopped; continue with: penstock scrub --cursor {report.cursor}", file=sys.stderr)
        if json:
            print_json(report.as_json())
        raise typer.Exit(130) from None
    if json:
        print_json(report.as_json())
    else:
        print(summary(report))
    if report.damage:
        raise typer.Exit(DAMAGE_STATUS)


async def _paced(page: Page, rate_bytes: int, cursor: str | None, keep: Callable[[ScrubReport], None]) -> ScrubReport:
    import asyncio

    now = asyncio.get_running_loop().time
    return await scrub_all(page, rate_bytes=rate_bytes, cursor=cursor, now=now, pause=asyncio.sleep, on_page=keep)


async def _online(
    controller: str, rate_bytes: int, cursor: str | None, keep: Callable[[ScrubReport], None]
) -> ScrubReport:
    from penstock.app.remote import open_remote

    async with open_remote(controller, dial_s=_DIAL_S) as (segments, _):
        return await _paced(segments.scrub, rate_bytes, cursor, keep)


async def _offline(
    data: Path,
    endpoint: str | None,
    insecure: bool,
    rate_bytes: int,
    cursor: str | None,
    keep: Callable[[ScrubReport], None],
) -> ScrubReport:
    from penstock.app.integrity.offline import open_offline
    from penstock.storage.machine.offload import ThreadOffload

    offload = ThreadOffload()
    try:
        async with open_offline(data, offload=offload, endpoint=endpoint, insecure=insecure) as store:
            scrubber = store.scrubber
            report = await _paced(lambda at, size: scrubber(offload).page(at, size), rate_bytes, cursor, keep)
            report.damage[:0] = [item for item in store.damage if item not in report.damage]
            return report
    finally:
        await offload.close()


def _so_far_line(report: ScrubReport) -> str:
    read = format_size(report.checked.get("bytes", 0))
    phase = (report.cursor or "done").partition(":")[0]
    return f"{phase}: {read} read, {counted(report.checked.get('blocks', 0), 'block')}, {len(report.damage)} damaged"


def summary(report: ScrubReport) -> str:
    """The report for people."""
    checked = ", ".join(
        f"{report.checked[name]:,} {name}"
        for name in ("rows", "frames", "objects", "segments", "chunks", "indexes", "blocks")
        if report.checked.get(name)
    )
    lines = [f"read {format_size(report.checked.get('bytes', 0))}: {checked or 'nothing'}"]
    if not report.damage:
        return "\n".join([*lines, "everything is sound"])
    lines.append(f"{len(report.damage)} damaged:")
    lines += [f"  {damage_line(item)}" for item in report.damage]
    if report.damage and affected(report.damage):
        lines.append("not readable:")
        for item in affected(report.damage):
            ranges = ", ".join(f"{start}..{end}" for start, end in item["ranges"])
            lines.append(f"  {item['stream'] or item['segment']}  segment {item['segment']}  offsets {ranges}")
    return "\n".join([*lines, "what to do:", *(f"  {said}" for said in advice(report.damage))])


def damage_line(item: Damage) -> str:
    """One finding on one line."""
    said = f"{item.kind.value}  {item.place}: {item.why}"
    if item.segment is not None and item.start is not None:
        said += f"  [{item.segment} {item.start}..{item.end}]"
    elif "of_segment" in item.fields:
        said += f"  [{item.fields['of_segment']}]"
    return said
