"""``penstock retention plan --facts``: the planner over lines of facts, without a store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

from penstock.app.cli.common.output import print_json, print_text
from penstock.model.errors import InvalidArgumentError

LINE_MAX_BYTES = 64 << 20
"""Facts of one stream, with room for 10,000 segments and their boundaries."""


def plan_facts(source: str) -> bool:
    """Print one decision, or one error object, for each line that is not blank, in order. Returns whether all were usable.

    ``source``: a file, or - for standard input. Memory holds one line. Raises InvalidArgumentError (no such file).
    """
    from penstock.core.planner_json.lines import plan_text
    from penstock.core.planner_json.requests import encode_error

    if source != "-" and not Path(source).is_file():
        raise InvalidArgumentError("no such file of facts", facts=source)
    is_usable = True
    with nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as lines:
        for line in _bounded_lines(lines):
            text, wrong = _text(line)
            if wrong is not None:
                is_usable = False
                print_json(encode_error(None, InvalidArgumentError(wrong)))
            elif text.strip():
                decision = plan_text(text)
                is_usable = is_usable and decision.usable
                print_text(decision.text)
    return is_usable


def _bounded_lines(source: BinaryIO) -> Iterator[bytes]:
    """Lines, each cut off one byte past the limit, so that a long line cannot fill the memory."""
    while line := source.readline(LINE_MAX_BYTES + 1):
        yield line
        while len(line) > LINE_MAX_BYTES and not line.endswith(b"\n"):
            line = source.readline(LINE_MAX_BYTES + 1)


def _text(line: bytes) -> tuple[str, str | None]:
    """The line as text, or what is wrong with it."""
    if len(line) > LINE_MAX_BYTES:
        return "", f"line is longer than {LINE_MAX_BYTES >> 20} MiB"
    try:
        return line.decode(), None
    except UnicodeDecodeError:
        return "", "line is not UTF-8"
