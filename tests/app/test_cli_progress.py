"""A line of progress is seen by people only, and gone when the work ends, however it ends."""

from __future__ import annotations

import io
import re
import sys

import pytest

from penstock.app.cli.common.output import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(text: str) -> str:
    """What a terminal shows at the end: a line is erased, or the cursor moves up into an older one."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[\??\d*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", text):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part.endswith("A"):
            row -= int(part[2:-1])
        elif not part.startswith("\x1b") and part != "\r":
            lines[row] += part
    return "\n".join(lines).strip()


def terminal(monkeypatch: pytest.MonkeyPatch, kind: type[io.StringIO] = Terminal) -> io.StringIO:
    """Standard error from here on."""
    found = kind()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return found


def test_each_text_takes_the_place_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    out = terminal(monkeypatch)
    with ProgressLine(quiet=False) as line:
        for text in ("a long one", "short", "x" * 500):
            line.show(text)
            assert text[:60] in out.getvalue()
            assert len(shown(out.getvalue())) <= 80
        line.show("")
        assert shown(out.getvalue()) == "", "the terminal is free for a question"
        line.show("again")
    assert shown(out.getvalue()) == ""


def fail(line: ProgressLine) -> None:
    line.show("half of it")
    raise OSError("away")


def test_what_an_error_prints_begins_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    out = terminal(monkeypatch)
    line = ProgressLine(quiet=False)
    with pytest.raises(OSError, match="away"), line:
        fail(line)
    print("penstock: away", file=sys.stderr)
    assert shown(out.getvalue()) == "penstock: away"


def test_programs_and_files_get_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    out = terminal(monkeypatch)
    with ProgressLine(quiet=True) as line:
        line.show("half of it")
    assert out.getvalue() == ""
    out = terminal(monkeypatch, io.StringIO)
    with ProgressLine(quiet=False) as line:
        line.show("half of it")
    assert out.getvalue() == ""
