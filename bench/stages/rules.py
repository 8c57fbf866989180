"""To which stage a stack belongs: the innermost frame that a rule names decides."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Path within the package and, after a blank, the function. The first that matches a frame wins.
_RULES: tuple[tuple[str, str], ...] = (
    # The bare loop.
    (r"bare_server\.py \S*(get_buffer|buffer_updated|_parse)", "receive and parse"),
    (r"bare_server\.py \S*_checksum", "checksum"),
    (r"bare_server\.py \S*_log", "log: write and sync"),
    (r"bare_server\.py \S*_tier", "tiering"),
    (r"bare_server\.py \S*_answer", "send"),
    (r"bare_server\.py \S*(_wake|_read)", "send"),
    (r"bare_client\.py \S*(_route|_frame|_lists|_segment_of|write_)", "client: route and frame"),
    (r"bare_client\.py \S*(_send|_wait)", "client: send, wait for answers"),
    (r"starts\.py _recover_bare", "replay"),
    # The server, and its recovery first.
    (r"durability/recovery", "replay"),
    (r"codec/store/operation\S* \S*decode", "decode"),
    (r"storage/log/(scan|check|tail)", "read and check the log"),
    (r"net/wire/frames\.py \S*Receiver", "receive and parse"),
    (r"net/wire/frames\.py Outbox", "send"),
    (r"net/wire/append_meter|app/telemetry|net/wire/watch|segmentstore/tail_reads", "counters"),
    (r"net/wire/connection\.py|codec/wire/|net/wire/frames", "receive and parse"),
    (r"net/wire/\S*read|segmentstore/calls/read|segmentstore/reading|segmentstore/cache|segmentstore/\S*tail", "read"),
    (r"net/wire/share\.py \S*(Tail|Answer)", "read"),
    (r"net/wire/", "writers and numbers"),
    (r"segmentstore/calls/|core/segments/|segmentstore/store\.py", "decide"),
    (r"storage/log/|durability/shared_log", "log: write and sync"),
    (r"codec/store/wal|codec/store/operation", "frame and checksum"),
    (r"segmentstore/tiering|storage/chunks|machine/direct|storage/objects", "tiering"),
    (r"segmentstore/durability|storage/rows|codec/store/rows", "checkpoints"),
    (r"segmentstore/", "container: order, state, waking"),
    (r"machine/(offload|serial)|ports/forks", "hand-over to threads"),
    (r"machine/(files|calls|holds|batched)", "file calls in threads"),
    (r"app/(memory|process)", "memory watch"),
    (r"controller/", "controller"),
    # The client.
    (r"client/writing/(arrow|batch|routes?|routing)|codec/events|model/hash|core/\S*hash", "client: route and frame"),
    (r"client/reading|client/serializing", "client: take blocks apart"),
    (r"client/writing|client/blocking/writers", "client: lanes, windows, answers"),
    (r"client/blocking", "client: between threads"),
    (r"net/dial|net/wire", "client: send and receive"),
)
_COMPILED = [(re.compile(pattern), name) for pattern, name in _RULES]
_FRAME = re.compile(r"^(?P<function>.*) \((?P<path>[^()]*?)(?::(?P<line>\d+))?\)$")
_HELPERS = ("file calls in threads", "hand-over to threads")
LOOP = "event loop, kernel, the rest"
# A thread that just woke and waits for a core shows here. It has used no CPU there.
_WAITS = re.compile(
    r"offload\.py _serve|selectors\.py |threading\.py wait|thread\.py _worker|answer\.py result|queue\.py "
)


def waits(stack: Sequence[str]) -> bool:
    """The innermost frame does nothing but wait."""
    found = _FRAME.match(stack[-1]) if stack else None
    return found is None or _WAITS.search(f"{found['path']} {found['function']}") is not None


def stage_of(stack: Sequence[str]) -> tuple[str, str]:
    """The stage of a stack, outermost frame first as py-spy writes it, and the ``file:line function`` that decided it.

    A call of a file or a hand-over to a thread belongs to the stage that asked for it, where the stack still shows it.
    """
    helping: tuple[str, str] | None = None
    for frame in reversed(stack):
        found = _FRAME.match(frame)
        if found is None:
            continue
        path = found["path"].rpartition("penstock/")[2].rpartition("stages/")[2]
        name = next((name for pattern, name in _COMPILED if pattern.search(f"{path} {found['function']}")), None)
        if name is None:
            continue
        place = f"{path}:{found['line']} {found['function'].rpartition('.')[2]}"
        if name not in _HELPERS:
            return name, helping[1] if helping else place
        helping = helping or (name, place)
    return helping or (LOOP, stack[-1] if stack else "?")
