"""What is wrong with the words of a command is said before any store is asked."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import NoReturn

import pytest

import penstock
from penstock.app.cli.main import main

NO_STREAM = "not a stream; write SCOPE/STREAM"
NO_NAME = "name is not legal"
NO_CUT = "a stream cut, as `penstock stream describe` prints it"
OUT_OF_ORDER = "the minimum exceeds the maximum"

COMMANDS = {
    "stream create web": NO_STREAM,
    "stream create web/a_b": NO_NAME,
    "stream create 'web/a b'": NO_NAME,
    "stream create web/a --segments 0": "--segments",
    "stream create web/a --events-per-s 99999999999999999999": "--events-per-s must be",
    "stream create web/a --kbytes-per-s 0": "--kbytes-per-s must be",
    "stream create web/a --events-per-s 1 --factor 2147483648": "--factor must be a whole number from 2 to 2147483647",
    "stream scaling set web/a --events-per-s 99999999999999999999": "--events-per-s must be",
    "table put web/a k v --if-version 99999999999999999999": "--if-version",
    "read web/a --from -5": "by a number of events (group reset); use earliest, latest, a time such as",
    "read web/a --from '-5 events'": "only a reader group",
    "stream truncate web/a --at '-5 events'": "only a reader group",
    "group reset web/a --to '-5 bytes'": '"-100 events"',
    "stream list web/a": NO_NAME,
    "stream describe web/": NO_STREAM,
    "stream scale web/a --segments 0": "--segments",
    "stream truncate web/a --at here": NO_CUT,
    "stream seal web": NO_STREAM,
    "stream delete 'web/a/b'": NO_STREAM,
    "table create web --primary-bytes 4": "not a table; write SCOPE/TABLE",
    "table create web/a_b --primary-bytes 4": "table name is not legal",
    "stream create web/..": "dashes, other than ..",
    "table create web/a --primary-bytes 0": "--primary-bytes",
    "scope create 'a b'": NO_NAME,
    "scope create _own": NO_NAME,
    "scope delete web/a": NO_NAME,
    "write web": NO_STREAM,
    "read web": NO_STREAM,
    "read web/a --from here": NO_CUT,
    "group list web/a": NO_NAME,
    "group delete web": "SCOPE/GROUP",
    "subscriber list web": NO_STREAM,
    "subscriber describe web/a reports": "SCOPE/GROUP",
    "subscriber move web/a web/reports --to here": NO_CUT,
    "hold add web/a --reason r --from here": NO_CUT,
    "read web/a --from '0#0:1 1:2'": NO_CUT,
    "read web/a --from '0#0:9999999999999999999'": NO_CUT,
    "read web/a --from '0#9999999999:1'": "segment id is out of range",
    "group reset web/g --to '0#0:1'": "with --stream",
    "hold add web --reason r --from head": "--from is for the hold of a stream",
    "hold list 'a b'": NO_NAME,
    "erase list web": NO_STREAM,
    "erase list 'web/a b'": NO_NAME,
    "subscriber list 'web/a b'": NO_NAME,
    "retention explain web": NO_STREAM,
    "retention explain web/a --at here": NO_CUT,
    "retention set web/a --min-bytes 10 --max-bytes 1": OUT_OF_ORDER,
    "retention plan --scope web --min-age 2d --max-age 1d": OUT_OF_ORDER,
    "retention audit web/a/b": NO_STREAM,
    "retention undo web": NO_STREAM,
    "standalone --data store --memory 10MB": "too small for a server. memory_bytes=10000000 least_bytes=100663296",
    "standalone --data store --tier2 's3://['": "this is not a valid URL",
    "standalone --data store --tier2 s3://b/p --s3-endpoint 'http://['": "this is not a valid URL",
    "rebuild --source 's3://[' --data store": "this is not a valid URL",
    "spark export web out": NO_STREAM,
    "spark load web in.csv": NO_STREAM,
    "spark table web out --key-by k": NO_STREAM,
    "spark erase web --reason r --json-field id": NO_STREAM,
    "spark audit 'a b'": NO_NAME,
    "spark scrub 'a b'": NO_NAME,
    "spark fleet --facts store --min-bytes 10 --max-bytes 1": OUT_OF_ORDER,
}


@pytest.mark.parametrize("words", list(COMMANDS))
def test_a_command_that_can_never_work_is_refused_without_a_store(
    words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a store was asked")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(penstock, "connect", connect)
    monkeypatch.setattr(sys, "argv", ["penstock", *shlex.split(words)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capfd.readouterr().err
    assert (ended.value.code, COMMANDS[words] in said) == (2, True), said
    assert not list(tmp_path.iterdir())
