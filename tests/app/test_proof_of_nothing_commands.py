"""No command proves anything about what does not exist, and none signs or writes a file where it refuses. The commands come
from the command line itself, so a new one that speaks of proofs needs an entry here."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from typer.testing import CliRunner

import penstock
from penstock.app.cli.main import app
from penstock.spark.cli import app as spark
from penstock.testing.server import ServerProcess
from tests.command_line import whole_tree

PROOF = re.compile(r"\b(receipts?|certificates?|pro(ofs?|ve[sd]?)|sign(s|ed|ature)?|verif(y|ies|ied))\b", re.IGNORECASE)
GROUPS = {"erase", "subject", "audit"}
"""All their commands need an entry, also those whose help does not match."""

WHY = ["--reason", "r"]
SUBJECT = ["--values-from", "values", "--json-field", "user.id"]
NO_TARGETS = [["s/tyop"], ["s/gone"], ["tyop"], ["empty"], ["s/t", "tyop"], ["S"], [""], ["s/"], ["s/t/x"]]
NO_SUBJECTS = [
    ["--values-from", "empty", "--json-field", "user.id"], ["--values-from", "blank", "--json-field", "user.id"],
    ["--values-from", "zero", "--json-field", "user.id"], ["--values-from", "values", "--json-field", ""],
    ["--values-from", "values", "--json-field", "user..id"], ["--values-from", "nothing", "--json-field", "user.id"],
    ["--values-from", "blank"], ["--values-from", "binary"], [],
]  # fmt: skip
NO_IDS = [["nope"], [""], ["OTHER"], ["e "], ["E"]]
NO_STREAMS = [["s/tyop"], ["s/gone"], ["tyop/t"], ["s"], [""]]
NO_NOTES = ["empty", "words", "binary", "other.note", "forked.note", "nothing"]
NO_POSITIONS = ["empty", "blank", "nothing", "foreign", "between", "beyond", "words", "binary"]


def and_all(heads: Sequence[list[str]], rest: Sequence[str]) -> list[list[str]]:
    return [[*head, *rest] for head in heads]


WRONG: Mapping[str, Sequence[Sequence[str]]] = {
    "erase run": [
        *and_all(NO_STREAMS, ["--positions", "right", *WHY, "--yes"]),
        *(["s/t", "--positions", name, *WHY, *how] for name in NO_POSITIONS for how in (["--yes"], ["--dry-run"])),
    ],
    "erase list": and_all(NO_STREAMS, []),
    "erase show": NO_IDS,
    "erase verify": NO_IDS,
    "erase withdraw": and_all(NO_IDS, WHY),
    "erase request": [
        *and_all(NO_TARGETS, [*SUBJECT, *WHY, "--yes"]),
        *(["s/t", *subject, *WHY, "--yes"] for subject in NO_SUBJECTS),
    ],
    "erase confirm-table": [
        *and_all(NO_IDS, ["--table", "t", *WHY]), ["e", "--table", "t", *WHY], ["e", "--table", "", *WHY],
    ],
    "erase case confirm-table": [
        *([*name, "s/gone", "--table", "t", *WHY] for name in NO_IDS),
        *(["c", *name, "--table", "t", *WHY] for name in [*NO_STREAMS, ["s/t"]]),
    ],
    "erase case show": NO_IDS,
    "erase case wait": NO_IDS,
    "erase case close": [*and_all(NO_IDS, WHY), ["c", "--reason", ""]],
    "erase case withdraw": and_all(NO_IDS, WHY),
    "erase ledger export": [["nothing/out"]],
    "subject export": [
        *and_all(NO_TARGETS, [*SUBJECT, "--output", "out.jsonl"]),
        *(["s/t", *subject, "--output", "out.jsonl"] for subject in NO_SUBJECTS),
        ["s/tyop", *SUBJECT, "--output", "out.parquet"],
    ],
    "retention certificate": [
        *and_all([["s/tyop"], ["tyop"], ["S"], [""], ["s/"], ["s/t/x"]], ["out"]),
        ["s/gone", "out", "--since", "2199-01-01"], ["s/gone", "out", "--since", "yesterdy"],
        ["s/gone", "out", "--since", "2020-01-02", "--until", "2020-01-01"],
    ],
    "audit receipt": and_all(NO_IDS, ["out"]),
    "audit hold": and_all(NO_IDS, ["out"]),
    "audit checkpoint": [["out", "--continues", name] for name in NO_NOTES],
    "audit export": [["nothing/out"]],
    "audit rotate-key": [[]],
    "verify": [
        *([name, "--public-key", "key"] for name in ("empty", "blank", "words", "binary", "values", "other.note", "nothing")),
        *(["own.note", "--public-key", name] for name in ("other.key", "empty", "binary", "nothing", "a+b+c", "")),
        *(["own.note", "--public-key", "key", "--known", name] for name in ("empty", "words", "other.note", "receipt")),
        ["receipt", "other.note", "--public-key", "key"],
    ],
    # What is refused before Spark starts. The rest is refused by the calls: test_proof_of_nothing.
    "spark erase": [
        *(["s/t", *subject, *WHY, "--yes"] for subject in NO_SUBJECTS if "zero" not in subject),
        ["s/tyop", "--id", "e", "--tables", *WHY], ["s/t", "--id", "nope", "--tables", *WHY],
    ],
    "backup verify": [["nothing"], ["folder"], ["values"], [""]],
}  # fmt: skip
"""By command: what must never be accepted. The words are names of the files of ``place``."""
SEES_ALL = {
    "erase cases": "lists the cases of the whole store",
    "audit key": "of the whole store", "audit checkpoints": "of the whole store",
    "erase ledger apply": "writes no proof; it refuses changed and foreign ledgers: test_erasure_ledger",
    "doctor": "prints no proof of data; test_doctor_verdict", "scrub": "prints no proof of data; test_integrity_scrub",
    "spark scrub": "needs Spark: test_spark_scrub",
    "restore": "refuses a backup that is not whole: test_backup",
    "user add": "names a certificate of TLS", "token issue": "signs a token: test_cli_users",
    "cluster secret finish": "speaks of signed tokens: test_cluster_secret",
}  # fmt: skip


def commands() -> Iterator[tuple[str, click.Command]]:
    def walk(found: Any, path: list[str]) -> Iterator[tuple[str, click.Command]]:
        if not hasattr(found, "commands"):
            yield " ".join(path), found
        for name, command in getattr(found, "commands", {}).items():
            yield from walk(command, [*path, name])

    yield from walk(whole_tree(), [])


def test_each_command_that_speaks_of_proofs_has_an_entry():
    speaking = {name for name, command in commands() if name.split()[0] in GROUPS or PROOF.search(command.help or "")}
    assert speaking == {*WRONG, *SEES_ALL}


def run(*arguments: str) -> Any:
    chosen = (spark, arguments[1:]) if arguments[0] == "spark" else (app, arguments)
    return CliRunner().invoke(chosen[0], list(chosen[1]))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[tuple[Path, str]]:
    """The folder with the files that the commands name, and the address of a store."""
    folder = tmp_path_factory.mktemp("proofs")
    texts = {
        "empty": b"", "blank": b"\n \n", "zero": b"\0\n", "words": b"no proof at all\n", "binary": b"\xff\xfe\0",
        "values": b"u\n", "right": b"0:0\n", "foreign": b"7:0\n", "between": b"0:1\n", "beyond": b"0:4096\n",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    (folder / "folder").mkdir()
    with penstock.open(folder / "other-store") as other:
        (folder / "other.note").write_text(other.audit().checkpoint().note)
        (folder / "other.key").write_text(other.audit().log().key)
    with ServerProcess(folder / "data", "--deletion-grace", "0s") as server, penstock.connect(server.address) as store:
        stream = store.create_stream("s/t", create_scope=True)
        with stream.writer() as writer:
            writer.write(b'{"user":{"id":"u"}}', key="k")
            writer.write(b'{"user":{"id":"v"}}', key="k")
        store.create_stream("s/gone")
        store.stream("s/gone").delete(seal=True)
        store.create_scope("empty")
        stream.erase([(0, 0)], who="w", why="y", erasure="e")
        (folder / "key").write_text(store.audit().log().key)
        (folder / "own.note").write_text(store.audit().checkpoint().note)
        lines = (folder / "own.note").read_text().split("\n")
        lines[2] = base64.b64encode(bytes(32)).decode()
        (folder / "forked.note").write_text("\n".join(lines))
        (folder / "receipt").write_text(store.audit().erasure("e").text)
        yield folder, server.address


def signed(address: str) -> tuple[object, ...]:
    """All that the store has proved."""
    with penstock.connect(address) as store:
        log = store.audit()
        return list(store.erasures()), store.cases().list(), log.checkpoints(), log.log()


@pytest.mark.server
@pytest.mark.parametrize("name", WRONG)
def test_each_command_refuses_what_does_not_exist_and_signs_nothing(place, monkeypatch, name):
    folder, address = place
    monkeypatch.chdir(folder)
    before, files = signed(address), sorted(folder.iterdir())
    where = [] if name in ("verify", "backup verify") else ["--controller", address]
    for wrong in WRONG[name]:
        found = run(*name.split(), *wrong, *where)
        assert found.exit_code, f"{name} {wrong} is accepted: {found.output}"
        assert sorted(folder.iterdir()) == files, f"{name} {wrong} wrote a file"
    assert signed(address) == before


def test_what_the_entries_change_is_accepted(place, monkeypatch):
    folder, address = place
    monkeypatch.chdir(folder)
    for right in (
        ["erase", "show", "e"], ["erase", "verify", "e"], ["erase", "list", "s/t"], ["audit", "receipt", "e"],
        ["retention", "certificate", "s/gone"], ["erase", "run", "s/t", "--positions", "right", *WHY, "--dry-run"],
        ["subject", "export", "s/t", *SUBJECT, "--output", "found.jsonl"],
        ["audit", "checkpoint", "--continues", "own.note"],
    ):  # fmt: skip
        found = run(*right, "--controller", address)
        assert found.exit_code == 0, f"{right}: {found.output} {found.exception}"
    (folder / "found.jsonl").unlink()
    found = run("verify", "own.note", "receipt", "--public-key", "key", "--known", "own.note")
    assert found.exit_code == 0, found.output
