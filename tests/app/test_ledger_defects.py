"""A copy that repeats a case lists what it could not search, as the original does."""

from __future__ import annotations

import json
import shutil

from typer.testing import CliRunner

import penstock
from penstock.app.cli.main import app

WHO = {"who": "ann", "why": "request 17"}
DEEP = b'{"user":"u-1","more":' + b"[" * 50_000 + b"]" * 50_000 + b"}"


def test_a_repeated_case_has_the_defects_of_its_search(tmp_path):
    data, copy, file = tmp_path / "data", tmp_path / "copy", tmp_path / "ledger"
    with penstock.open(data) as store:
        stream = store.create_stream("s/t", create_scope=True)
        with stream.writer() as writer:
            for event in (json.dumps({"user": "u-1"}), DEEP, json.dumps({"user": "u-2"})):
                writer.write(event, key="a")
        store.audit().log()  # from now on a copy can verify ledgers
    shutil.copytree(data, copy)
    with penstock.open(data) as store:
        store.cases().open("s/t", ["u-1"], json_field="user", case="c", **WHO)
        store.cases().wait("c")
        defects = store.cases().close("c", **WHO).defects
        assert "cannot be searched" in defects[0].why
    for command in (["export", file, "--data", data], ["apply", file, "--data", copy]):
        found = CliRunner().invoke(app, ["erase", "ledger", *map(str, command)])
        assert found.exit_code == 0, found.output
    with penstock.open(copy) as store:
        repeated = store.cases().show("c")
        assert (repeated.state, repeated.defects) == ("closed", defects)
