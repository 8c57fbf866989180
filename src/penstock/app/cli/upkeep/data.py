"""``penstock write`` and ``penstock read``: events as lines."""

from __future__ import annotations

import base64
import json as jsonlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from penstock.app.cli.common.options import FOLLOW, FROM, RECORD, TIME_TOO, LimitOption
from penstock.app.cli.common.positions import start_of
from penstock.app.cli.common.target import ControllerOption, DataOption, JsonOption, StreamArgument, open_target
from penstock.app.cli.upkeep.record_lines import record_line, record_of_line
from penstock.core.units import counted, format_size
from penstock.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Store
    from penstock.client.reading.blocks import Event

_INPUT_BYTES = 1 << 20


def write(
    stream: StreamArgument,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Routing key: .FIELD of JSON events (.a.b is b within a; .a,.b joins two), or a fixed text. "
            "Events of one key stay in order.",
            show_default=False,
        ),
    ] = None,
    record: Annotated[
        bool,
        typer.Option(
            "--record",
            help=f"{RECORD} Its key is the routing key. Bytes that are not text: value_base64, key_base64.",
        ),
    ] = False,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Write standard input, one event per line. Returns when all of it is durable.

    \b
    echo '{"user": 7}' | penstock write demo/clicks --key .user
    echo '{"key": "user-7", "value": "click", "headers": {"page": "/"}}' | penstock write demo/clicks --record
    """
    if record and key is not None:
        raise InvalidArgumentError("--key is for plain events; a record has its key in its line", key=key)
    choose = _key_chooser(key)
    events = size_bytes = 0
    with open_target(controller, data) as store:
        _require_stream(store, stream)
        with store.stream(stream).writer() as writer:
            for lines in _lines(sys.stdin.buffer):
                try:
                    keys = None if choose is None else [choose(line) for line in lines]
                    written = [record_of_line(line) for line in lines] if record else lines
                except InvalidArgumentError as error:
                    writer.flush()
                    raise InvalidArgumentError(error.message, **error.fields, written_before=events) from error
                writer.write_many(written, keys)
                events += len(lines)
                size_bytes += sum(map(len, lines))
            writer.flush()
    if json:
        print(jsonlib.dumps({"stream": stream, "events": events, "bytes": size_bytes}))
    else:
        print(f"wrote {counted(events, 'event')}, {format_size(size_bytes)}, to {stream}", file=sys.stderr)


def _require_stream(store: Store, stream: str) -> None:
    """Fail before anything is read: a pipe cannot be read twice."""
    store.stream(stream).describe()


def _lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """Batches of lines without line ends. A slow pipe is passed on line by line, a file by the megabyte."""
    rest = b""
    while chunk := source.read1(_INPUT_BYTES):  # type: ignore[attr-defined]
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if lines:
            yield lines
    if rest:
        yield [rest]


def _key_chooser(key: str | None) -> Callable[[bytes], str] | None:
    if key is None:
        return None
    if not key.startswith("."):
        return lambda line: key
    fields = [part.removeprefix(".") for part in key.split(",")]
    if not all(name for field in fields for name in field.split(".")):
        raise InvalidArgumentError("--key must be .FIELD, .FIELD.FIELD, .FIELD,.FIELD or a fixed text", key=repr(key))

    def from_fields(line: bytes) -> str:
        try:
            event: Any = jsonlib.loads(line)
            found = [_field(event, field) for field in fields]
        except (ValueError, LookupError, TypeError) as error:
            raise InvalidArgumentError(f"the event has no such field: --key {key}", event=repr(line[:80])) from error
        if any(isinstance(value, dict | list) for value in found):
            raise InvalidArgumentError(
                f"the field for --key {key} is an object or a list; a routing key must be a single value",
                event=repr(line[:80]),
            )
        return "/".join(map(str, found))

    return from_fields


def _field(event: Any, path: str) -> Any:
    """The value of the field, or of the path of names joined by dots; a number indexes a list. Raises LookupError,
    TypeError, ValueError."""
    if isinstance(event, dict) and path in event:
        return event[path]
    for name in path.split("."):
        event = event[int(name)] if isinstance(event, list) else event[name]
    return event


def read(
    stream: StreamArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help=FOLLOW)] = False,
    start: Annotated[str, typer.Option("--from", metavar="POSITION", help=f"{FROM} {TIME_TOO}")] = "earliest",
    limit: LimitOption = None,
    record: Annotated[
        bool,
        typer.Option(
            "--record",
            help=f"{RECORD} `penstock write --record` reads it. An event that is not a record is printed as --json "
            "prints it.",
        ),
    ] = False,
    times: Annotated[bool, typer.Option("--times", help="Print when each event was appended, in UTC.")] = False,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print the events, one per line, up to the current tail.

    From a time on, it prints all events that were appended since then, and up to one block of earlier ones for each
    segment: the store keeps times for each block of 1 MiB or 10 seconds, and for the tail as a whole. So --times prints
    the time of the last append of the event's block.

    \b
    penstock read demo/clicks --from 2026-01-31T12:00
    penstock read demo/clicks --from earliest --limit 10
    penstock read demo/clicks --from latest --follow
    penstock read demo/clicks --record
    """
    if record and times:
        raise InvalidArgumentError("give --record or --times, not both: a record has a time of its own")
    begin = start_of(start, stream)
    out = sys.stdout.buffer
    left = limit if limit is not None else -1
    with open_target(controller, data) as store:
        _require_stream(store, stream)
        with store.stream(stream).reader(start=begin, until_tail=not follow, append_times=times) as reader:
            for event in reader:
                at = _time_of(event) if times else None
                line = record_line(event) if record else None
                if line is not None:
                    out.write(line)
                elif json or record:
                    out.write(_as_json(event, {"appended_at": at} if times else {}))
                else:
                    out.write(f"{at or '-'}\t".encode() + event.data if times else event.data)
                out.write(b"\n")
                if follow:
                    out.flush()
                left -= 1
                if left == 0:
                    break
    out.flush()


def _time_of(event: Event) -> str | None:
    at = event.appended_at
    return None if at is None else f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"


def _as_json(event: Event, more: Mapping[str, object]) -> bytes:
    data, place = event.data, {"segment": event.segment, "offset": event.offset, **more}
    try:
        value: Any = jsonlib.loads(data)
    except ValueError:
        try:
            value = data.decode()
        except UnicodeDecodeError:
            # Bytes that are no text must come back as they were.
            return jsonlib.dumps({"event_base64": base64.b64encode(data).decode(), **place}).encode()
    return jsonlib.dumps({"event": value, **place}, ensure_ascii=False).encode()
