"""``penstock doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.common.options import DATA, EndpointOption, InsecureOption
from penstock.app.cli.common.output import print_json
from penstock.app.cli.common.target import JsonOption
from penstock.app.cli.upkeep.scrub import DAMAGE_STATUS, damage_line
from penstock.app.integrity.report import advice
from penstock.core.units import counted, format_size

if TYPE_CHECKING:
    from penstock.app.integrity.doctor import Diagnosis


def doctor(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help=DATA, show_default=False)],
    endpoint: EndpointOption = None,
    insecure: InsecureOption = False,
    json: JsonOption = False,
) -> None:
    """Check the data directory of a stopped store: versions, owner, damage, and what to do. Changes nothing.

    Reads everything except the bytes of chunks, which `penstock scrub` verifies. Exit status 7: something is damaged, or a
    start would be refused.

    \b
    penstock doctor --data ./store
    """
    import asyncio

    found = asyncio.run(_diagnose(data, endpoint, insecure))
    if json:
        print_json(found.as_json())
    else:
        print("\n".join(_lines(found)))
    if found.damage or found.refusal is not None:
        raise typer.Exit(DAMAGE_STATUS)


async def _diagnose(data: Path, endpoint: str | None, insecure: bool) -> Diagnosis:
    from penstock.app.integrity.doctor import diagnose
    from penstock.storage.machine.offload import ThreadOffload

    offload = ThreadOffload()
    try:
        return await diagnose(data, offload=offload, endpoint=endpoint, insecure=insecure)
    finally:
        await offload.close()


def _secret_lines(facts: dict[str, Any]) -> list[str]:
    if not facts:
        return []
    parts = ["no key of the audit log yet" if facts["audit_key"] is None else f"audit log {facts['audit_key']}"]
    parts += [] if facts["users"] is None else [counted(facts["users"], "user")]
    parts += ["a key of tokens"] if facts["tokens_key"] else []
    return [f"secrets    {', '.join(parts)}"]


def _lines(found: Diagnosis) -> list[str]:
    if not found.facts:
        lines = [found.verdict, f"directory  {found.data}", *_secret_lines(found.secrets)]
        for one in found.workers:
            lines += ["", *_lines(one)]
        return lines
    facts = found.facts
    log, metadata, segments = facts["log"], facts["metadata"], facts["segments"]
    lines = [
        found.verdict,
        f"directory  {found.data}, version {facts['version'] or 'unknown'}, not in use",
        f"tier 2     {facts['tier2']['place']}"
        + (f", store {facts['tier2']['store']}" if facts["tier2"]["store"] else ""),
        f"log        epoch {log['epoch']}, {log['in_use']} of {log['files']} files in use"
        + (f", frames {log['first']} to {log['last']}" if "last" in log else ""),
        "metadata   cannot be read"
        if metadata is None
        else f"metadata   {counted(metadata['rows'], 'row')}, "
        + (
            "number of containers unknown"
            if metadata["containers"] is None
            else counted(metadata["containers"], "container")
        ),
    ]
    behind = [item["behind"] for item in facts["catalogue"] if item["behind"]]
    lines.append(
        f"catalogue  {counted(len(facts['catalogue']), 'container')}"
        + (f", up to {max(behind)} batches behind" if behind else "")
    )
    lines.append(
        f"segments   {', '.join(counted(segments[f'{name}s'], name) for name in ('stream', 'segment', 'table'))}; "
        f"{counted(segments['chunks'], 'chunk')} with {format_size(segments['bytes'])}, "
        f"{segments['missing_chunks']} missing, {segments['unnamed_chunks']} that nothing names"
    )
    lines += _secret_lines(found.secrets)
    if found.damage:
        lines.append(f"{len(found.damage)} damaged:")
        lines += [f"  {damage_line(item)}" for item in found.damage]
        lines += ["what to do:", *(f"  {said}" for said in advice(found.damage))]
    return lines
