"""``penstock wal inspect`` and ``penstock chunk inspect``: stored bytes, as they lie there. Nothing is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.common.options import DATA, SOURCE, EndpointOption, InsecureOption
from penstock.app.cli.common.output import print_json, print_rows
from penstock.app.cli.common.target import JsonOption
from penstock.app.cli.upkeep.scrub import DAMAGE_STATUS

if TYPE_CHECKING:
    from penstock.app.integrity.look import BlockFacts, FrameFacts
    from penstock.storage.machine.offload import ThreadOffload

wal = typer.Typer(help="The write-ahead log of a store that is not running.", no_args_is_help=True)
chunk = typer.Typer(help="Chunks of tier 2.", no_args_is_help=True)


@wal.callback()
def _wal() -> None:
    """The write-ahead log of a store that is not running."""


@chunk.callback()
def _chunk() -> None:
    """Chunks of tier 2."""


@wal.command("inspect")
def inspect_wal(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help=DATA, show_default=False)],
    first: Annotated[int, typer.Option("--first-sequence", metavar="N", help="Number of the first frame.")] = 0,
    last: Annotated[
        int | None, typer.Option("--last-sequence", metavar="N", help="Number of the last frame.", show_default=False)
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file", metavar="FILE", help="Only this file of the log, for example 3.log.", show_default=False
        ),
    ] = None,
    operations: Annotated[bool, typer.Option("--operations", help="Show each operation of each frame.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the frames of the log: place, sequence, epoch, checksum, container, time, operations.

    Exit status 7: a frame fails its checksum, or recovery would refuse the log.

    \b
    penstock wal inspect --data ./store --first-sequence 1000 --operations
    """
    damaged = 0
    rows: list[list[Any]] = []

    def show(frame: FrameFacts) -> None:
        nonlocal damaged
        damaged += not frame.sound
        if json:
            print_json(frame.as_json(operations=operations))
        elif operations:
            rows.extend(_operation_row(frame, item) for item in frame.operations or [{"kind": frame.kind}])
        else:
            kinds = Counter(str(item["kind"]) for item in frame.operations)
            said = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or frame.kind
            rows.append([*_frame_row(frame), said])

    from penstock.app.integrity.look import log_frames

    why = _run(lambda offload: log_frames(data, offload=offload, first=first, last=last, file=file, show=show))
    if not json:
        columns = ["file", "offset", "sequence", "epoch", "bytes", "durable", "checksum", "container", "time"]
        print_rows(
            [*columns, *(["operation", "uid", "details"] if operations else ["operations"])], rows, as_json=False
        )
    for said in why:
        if json:
            print_json({"damage": said})
        else:
            print(f"recovery would refuse this log: {said}")
    if damaged or why:
        raise typer.Exit(DAMAGE_STATUS)


def _frame_row(frame: FrameFacts) -> list[Any]:
    return [
        frame.file,
        frame.offset,
        frame.sequence,
        frame.epoch,
        frame.size_bytes,
        frame.durable_sequence,
        "ok" if frame.sound else "FAILS",
        "" if frame.container is None else frame.container,
        _time(frame.time_ms),
    ]


def _operation_row(frame: FrameFacts, item: Mapping[str, Any]) -> list[Any]:
    rest = " ".join(f"{name}={value}" for name, value in item.items() if name not in ("kind", "uid"))
    return [*_frame_row(frame), item["kind"], item.get("uid", ""), rest]


def _time(time_ms: int | None) -> str:
    return "" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CHUNK]...", help="Names of chunks, such as 0/100000001-1-0.", show_default=False),
]
PlaceOption = Annotated[
    str,
    typer.Option("--source", metavar="PLACE", help=SOURCE, show_default=False),
]
SegmentOption = Annotated[
    str | None,
    typer.Option(
        "--segment",
        metavar="SEGMENT",
        help="Only chunks of this segment, for example demo/clicks/0.#epoch.0.",
        show_default=False,
    ),
]
FirstOption = Annotated[int, typer.Option("--first-byte", metavar="N", help="First byte of the chunk.")]
LastOption = Annotated[
    int | None, typer.Option("--last-byte", metavar="N", help="Last byte of the chunk.", show_default=False)
]


@chunk.command("inspect")
def inspect_chunk(
    names: NamesArgument = None,
    place: PlaceOption = "./store",
    segment: SegmentOption = None,
    first: FirstOption = 0,
    last: LastOption = None,
    endpoint: EndpointOption = None,
    insecure: InsecureOption = False,
    json: JsonOption = False,
) -> None:
    """Show the blocks of chunks: positions, offsets in the segment, events, checksums, and whether the bytes match.

    Without names: all chunks. Exit status 7: something is damaged.

    \b
    penstock chunk inspect 0/100000001-1-0 --source ./store
    """
    damaged = 0
    rows: list[list[Any]] = []

    def show(block: BlockFacts) -> None:
        nonlocal damaged
        damaged += not block.sound
        if json:
            print_json(block.as_json())
        else:
            rows.append(_block_row(block))

    from penstock.app.integrity.look import chunk_blocks

    _run(
        lambda offload: chunk_blocks(
            place,
            names or [],
            segment=segment,
            first=first,
            last=last,
            offload=offload,
            endpoint=endpoint,
            insecure=insecure,
            show=show,
        )
    )
    if not json:
        columns = ["chunk", "block", "start", "end", "offset", "events", "crc32c", "state", "segment"]
        print_rows(columns, rows, as_json=False)
    if damaged:
        raise typer.Exit(DAMAGE_STATUS)


def _block_row(block: BlockFacts) -> list[Any]:
    return [
        block.chunk,
        block.index,
        block.start,
        block.end,
        block.segment_start,
        block.events,
        "" if block.crc32c is None else f"{block.crc32c:08x}",
        block.state,
        block.segment or "",
    ]


def _run(work: Callable[[ThreadOffload], Any]) -> Any:
    import asyncio

    from penstock.storage.machine.offload import ThreadOffload

    async def main() -> Any:
        offload = ThreadOffload()
        try:
            return await work(offload)
        finally:
            await offload.close()

    return asyncio.run(main())
