"""One rule for every command that deletes: it says what is lost, asks on a terminal, refuses elsewhere without --yes, prints
what was lost, and leaves an audit entry with the caller and the reason."""

from __future__ import annotations

import getpass
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

import penstock as api
from penstock.app.cli.main import main
from penstock.client.blocking.stores import Store
from penstock.model.errors import ErasureDeferredError
from penstock.spark.cli import erase as spark_erase
from tests.command_line import whole_tree

Run = Callable[..., tuple[int, str, str]]

EVENT_BYTES = 11
FREE_ALL = ("--max-bytes", "0B")


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A command that takes data or a promise away, in a store with ten events, and what it must name.

    ``audit``: kinds of the entries that it leaves. ``prepare``: what the store needs beside its stream and its subscriber.
    """

    words: Sequence[str]
    names: Sequence[str]
    audit: Sequence[str]
    prepare: Callable[[Store, Path], object] = lambda store, path: None


def hold(store: Store, _: Path) -> None:
    store.holds("s/t").add(owner="legal", reason="case 7", hold_id="case-7")


def limit(store: Store, _: Path) -> None:
    store.policy("s").set({"retain": {"max_bytes": 0}})
    store.stream("s/t").retention.set({"retain": {"max_bytes": None}})


def empty_scope(store: Store, _: Path) -> None:
    store.create_scope("empty")
    store.policy("empty").set({"retain": {"max_age_s": 86_400}})


def table(store: Store, _: Path) -> None:
    made = store.create_table("s/k", primary_key_bytes=1, partitions=2)
    for key in ("a", "b", "c"):
        made.put(key, "v")


def positions(store: Store, path: Path) -> None:
    with store.stream("s/t").reader(until_tail=True) as reader:
        (path / "positions").write_text("".join(f"{event.segment}:{event.offset}\n" for event in list(reader)[:3]))


def transaction(store: Store, path: Path) -> None:
    """An open one, as a crash leaves it."""
    left = store.stream("s/t").transaction(lease_s=600)
    left.open()
    left.write_many([b"y" * 100] * 3, ["a", "b", "c"])
    left.flush()
    store.call(lambda _: left._inner.abandon())
    (path / "transaction").write_text(str(left.id))


def values(_: Store, path: Path) -> None:
    (path / "values").write_text("ab3\nab7\n")


GUARDED: Mapping[str, Guarded] = {
    "stream truncate": Guarded(
        words=("s/t", "--at", "tail"), names=("110 B, 10 events", "s/g: 110 B, 10 events"), audit=("truncate",)
    ),
    "stream delete": Guarded(
        words=("s/t", "--seal"), names=("110 B, 10 events", "s/g: 110 B, 10 events"), audit=("delete",)
    ),
    "scope delete": Guarded(words=("empty",), names=("retain.max_age_s 1 d",), audit=("delete",), prepare=empty_scope),
    "group delete": Guarded(words=("s/g",), names=("s/t: 110 B, 10 events",), audit=("delete", "drop")),
    "group reset": Guarded(words=("s/g", "--to", "tail"), names=("110 B, 10 events",), audit=("move",)),
    "subscriber move": Guarded(words=("s/t", "s/g", "--to", "tail"), names=("110 B, 10 events",), audit=("move",)),
    "subscriber remove": Guarded(words=("s/t", "s/g"), names=("110 B, 10 events",), audit=("drop",)),
    "hold release": Guarded(words=("case-7",), names=("110 B of s/t", "case 7"), audit=("unhold",), prepare=hold),
    "retention set": Guarded(
        words=("s/t", *FREE_ALL), names=("110 B, 10 events", "s/g: loses unread data"), audit=("policy",)
    ),
    "retention unset": Guarded(
        words=("s/t",), names=("110 B, 10 events", "s/g: loses unread data"), audit=("policy",), prepare=limit
    ),
    "txn abort": Guarded(
        words=("s/t", "TRANSACTION"), names=("324 B in 1 segment",), audit=("abort",), prepare=transaction
    ),
    "table delete": Guarded(words=("s/k",), names=("3 entries",), audit=(), prepare=table),
    "erase run": Guarded(
        words=("s/t", "--positions", "POSITIONS"), names=("3 events",), audit=("erase",), prepare=positions
    ),
    "erase request": Guarded(
        words=("s/t", "--values-from", "VALUES"),
        names=("all that match 2 values",),
        audit=("case_opened", "erase"),
        prepare=values,
    ),
}
ON_SPARK = {"spark erase"}
OF_KEYS = {"audit rotate-key"}
"""Deletes a private key and no data: test_cli_evidence tries it."""
OF_CLUSTERS = {"cluster disable", "cluster doctor"}
"""Take a container away from clients until it is enabled, and give up a log that is lost: test_cluster_disabled and
test_cluster_rebuilt_processes try them."""

UNGUARDED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *(
                "stream list",
                "stream deleted",
                "stream describe",
                "stream scaling explain",
                "scope list",
                "group list",
                "group describe",
                "group members",
            ),
            *("txn list", "txn describe"),
            *("subscriber list", "subscriber describe", "hold list", "erase list", "erase show", "erase verify"),
            *("retention show", "retention plan", "retention explain", "retention facts", "retention reclaim"),
            *("retention forecast", "retention plot", "retention audit", "retention schema"),
            *(
                "table list",
                "table describe",
                "table get",
                "table scan",
                "wal inspect",
                "chunk inspect",
                "read",
                "scrub",
                "doctor",
                "backup verify",
            ),
            *("erase cases", "erase case show", "erase case wait", "erase ledger export", "subject export"),
            *("audit checkpoint", "audit export", "audit hold", "audit key", "audit receipt", "retention certificate"),
            *("audit checkpoints", "user list", "token list", "verify", "approval list", "approval show"),
            *("spark audit", "spark scrub", "spark fleet", "cluster status"),
        ),
        "reads",
    ),
    **dict.fromkeys(
        (
            "stream create",
            "table create",
            "stream restore",
            "scope create",
            "hold add",
            "write",
            "standalone",
            "store",
            "controller",
            "cluster init",
            "backup create",
            "token issue",
            "user add",
            "user grant",
            "user import",
            "spark load",
            "spark export",
            "spark archive",
        ),
        "adds",
    ),
    "table put": "sets the value of one key",
    "stream scale": "replaces segments, and keeps every event",
    "stream scaling set": "keeps every event, whatever it splits or merges later",
    "stream seal": "ends writing, and keeps every event",
    "stream repair": "removes records that no reader can ever reach, and keeps every event of the stream",
    "retention run": "decides nothing: it deletes now what the policy in force deletes with the next cycle",
    "retention undo": "gives back",
    "cluster drain": "moves containers to other stores, and keeps every event",
    "cluster undrain": "moves containers to other stores, and keeps every event",
    "cluster move": "moves a container to another store, and keeps every event",
    "cluster unpin": "lets a container move to any store, and keeps every event",
    "cluster enable": "gives back",
    **dict.fromkeys(
        ("cluster secret record", "cluster secret change", "cluster secret finish"),
        "changes who may do what, and no data",
    ),
    "cluster upgrade": "lets newer formats be written, and keeps every event",
    "approval require": "removes nothing; to require less is itself a request that another identity must approve",
    "approval approve": "performs what another identity has requested: the request is the question, and names the loss",
    "approval refuse": "keeps what was to be removed",
    "approval withdraw": "keeps what was to be removed",
    "user passwd": "changes who may do what, and no data",
    "user remove": "changes who may do what, and no data",
    "user revoke": "changes who may do what, and no data",
    "token revoke": "changes who may do what, and no data",
    "erase confirm-table": "records what a person states, and changes no data",
    "erase case confirm-table": "records what a person states, and changes no data",
    "erase case close": "ends erasing: events that arrive later are kept",
    "erase case withdraw": "keeps the events that were to be erased",
    "erase ledger apply": "decides nothing: it erases in a copy what the original has erased",
    "erase withdraw": "keeps the events that were to be erased",
    "rebuild": "writes to a directory that must be new",
    "restore": "writes to a directory that must be new",
    "demo": "empties a directory that bears its own mark, and refuses any other",
    "spark lake": "is a subscriber: it acknowledges what it has committed",
    "spark table": "is a subscriber: it acknowledges what it has stored",
}


def commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """All commands below the group, by the words that call them."""
    for name in group.commands:
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


def all_commands() -> Mapping[str, Any]:
    return dict(commands(whole_tree()))


def test_every_command_is_known_to_delete_or_not() -> None:
    known = [*GUARDED, *ON_SPARK, *OF_KEYS, *OF_CLUSTERS, *UNGUARDED]
    assert sorted(known) == sorted(set(known))
    assert set(all_commands()) == set(known), "a new command belongs in one of the tables above"


def test_the_commands_that_delete_and_no_others_take_yes_and_all_of_them_a_reason() -> None:
    for words, command in all_commands().items():
        options = {option for parameter in command.params for option in parameter.opts}
        guarded = words in GUARDED or words in ON_SPARK | OF_KEYS | OF_CLUSTERS
        assert ("--yes" in options) == guarded, words
        assert "--reason" in options or not guarded, words


class Terminal(io.TextIOWrapper):
    """Standard input that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A stream of ten events, with a subscriber at its head."""
    with api.open(tmp_path / "data", memory_bytes=64 << 20) as store:
        stream = store.create_stream("s/t", create_scope=True)
        store.reader_group("s/g", ["s/t"], retention="manual")
        with stream.writer() as writer:
            for number in range(10):
                writer.write(f"ab{number}")
        yield store


@pytest.fixture
def penstock(
    store: Store, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs one command on the store; gives (status, stdout, stderr). ``answer``: typed at a terminal."""
    # Opening the directory for each command would take most of the time.
    monkeypatch.setattr(api, "open", lambda _: nullcontext(store))

    def run(*words: str, answer: str | None = None) -> tuple[int, str, str]:
        given_words = {
            "POSITIONS": lambda: str(tmp_path / "positions"),
            "VALUES": lambda: str(tmp_path / "values"),
            "TRANSACTION": (tmp_path / "transaction").read_text,
        }
        where = [given_words[word]() if word in given_words else word for word in words]
        monkeypatch.setattr(sys, "argv", ["penstock", *where, "--data", str(tmp_path / "data")])
        given = io.BytesIO((answer or "").encode())
        monkeypatch.setattr(sys, "stdin", Terminal(given) if answer is not None else io.TextIOWrapper(given))
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfdbinary.readouterr()
        return int(ended.value.code or 0), out.decode(), err.decode()

    return run


def state_of(store: Store) -> Mapping[str, Any]:
    """All that a command could take away."""
    found: dict[str, Any] = {"scopes": store.scopes(), "holds": store.holds().list(), "server": store.policy().get()}
    for scope in store.scopes():
        found[scope] = (store.policy(scope).get(), store.streams(scope), list(store.reader_groups(scope)))
        for name in store.tables(scope):
            found[f"table {scope}/{name}"] = list(store.table(f"{scope}/{name}").scan())
        for name in store.streams(scope):
            stream = store.stream(f"{scope}/{name}")
            with stream.reader(start="head", until_tail=True) as reader:
                events = [event.data for event in reader]
            subscribers = [replace(item, lag_ms=None) for item in stream.subscribers()]
            transactions = [(item.id, item.state) for item in stream.open_transactions()]
            found[f"{scope}/{name}"] = (stream.retention.get(), events, subscribers, stream.tail(), transactions)
    return found


def audit_of(penstock: Run, store: Store) -> list[dict[str, Any]]:
    # An entry enters the stream a moment after its decision.
    store._thread.call(store._inner.controller.drain_audit())
    return [json.loads(line) for line in penstock("retention", "audit", "--json")[1].splitlines()]


@pytest.mark.parametrize("words", GUARDED)
def test_without_yes_nothing_is_lost_and_with_it_what_was_lost_is_printed(
    words: str, penstock: Run, store: Store, tmp_path: Path
) -> None:
    case = GUARDED[words]
    case.prepare(store, tmp_path)
    command = (*words.split(), *case.words, "--reason", "ticket 7")
    before = state_of(store)

    status, out, err = penstock(*command)
    assert (status, out) == (2, ""), err
    assert "--yes" in err
    for name in case.names:
        assert name in err, err
    status, out, err = penstock(*command, answer="n\n")
    assert (status, out.strip()) == (1, ""), err
    assert "nothing was changed" in err
    for name in case.names:
        assert name in err, err
    assert state_of(store) == before

    reported = len(audit_of(penstock, store))
    status, out, err = penstock(*command, "--yes")
    assert (status, err) == (0, "")
    for name in case.names:
        assert name in out, out
    assert state_of(store) != before
    # A cycle may have come by already. What it decides, nobody has asked for.
    entries = [entry for entry in audit_of(penstock, store)[reported:] if entry["kind"] == "erase" or "caller" in entry]
    assert sorted(entry["kind"] for entry in entries) == sorted(case.audit)
    for entry in entries:
        asked = entry if entry["kind"] == "erase" else entry["caller"]
        assert (asked["who"], asked["why"]) == (getpass.getuser(), "ticket 7")


@pytest.mark.parametrize("words", GUARDED)
def test_as_json_the_refusal_and_the_answer_name_what_is_lost(
    words: str, penstock: Run, store: Store, tmp_path: Path
) -> None:
    case = GUARDED[words]
    case.prepare(store, tmp_path)
    command = (*words.split(), *case.words, "--reason", "ticket 7", "--json")
    status, out, err = penstock(*command)
    assert (status, out) == (2, "")
    refused = json.loads(err)
    assert "--yes" in refused["message"]
    assert refused["fields"]["action"]
    status, out, err = penstock(*command, "--yes")
    assert (status, err) == (0, "")
    answer = json.loads(out)
    if "lost" not in answer:  # a receipt, or a line for each stream of a group, which name it themselves
        answer["lost"] = {name: answer.get("where", answer)[name] for name in ("bytes", "events")}
    assert answer["lost"]
    for name, value in answer["lost"].items():
        if not isinstance(value, list | dict) and name != "restorable_until_ms":
            assert refused["fields"][name] == value, name


def test_a_yes_on_the_terminal_is_enough(penstock: Run) -> None:
    assert penstock("stream", "truncate", "s/t", "--at", "tail", answer="y\n")[0] == 0
    assert penstock("read", "s/t")[1] == ""


def test_what_takes_nothing_away_is_done_without_a_question(penstock: Run) -> None:
    assert penstock("subscriber", "move", "s/t", "s/g", "--to", "head")[0] == 0
    assert penstock("retention", "set", "s/t", "--min-age", "1d")[0] == 0
    assert penstock("stream", "truncate", "s/t", "--at", "tail", "--yes")[0] == 0
    assert penstock("stream", "truncate", "s/t", "--at", "tail")[:2] == (0, "s/t begins at 0#0:110: nothing changed\n")


def test_a_scope_that_is_not_empty_is_refused_before_the_question(penstock: Run, store: Store) -> None:
    status, out, reported = penstock("scope", "delete", "s", answer="y\n")
    assert (status, out) == (4, "")
    assert "only an empty scope can be deleted" in reported
    assert "would delete" not in reported
    store.stream("s/t").delete(seal=True)
    assert penstock("scope", "delete", "s", "--yes")[0] == 4, "its reader group is there"
    store.create_table("tables/k", primary_key_bytes=1, create_scope=True)
    status, _, reported = penstock("scope", "delete", "tables", answer="y\n")
    assert status == 4
    assert "would delete" not in reported


def test_the_release_of_a_hold_names_the_erasures_that_it_defers(penstock: Run, store: Store) -> None:
    with store.stream("s/t").reader(until_tail=True) as reader:
        first, second = [(event.segment, event.offset) for event in list(reader)[:2]]
    for name in ("case-7", "case-8"):
        store.holds("s/t" if name == "case-7" else "s").add(owner="legal", reason="case", hold_id=name)
    for erasure, position in (("r17", first), ("r18", second)):
        with pytest.raises(ErasureDeferredError):
            store.stream("s/t").erase([position], who="ann", why="request", erasure=erasure)
    store.erasures().withdraw("r18", who="ann", why="wrong user")
    # The erasure does not note the end of a hold before its next look.
    store._inner.controller.holds._ended = lambda: None

    status, out, _ = penstock("hold", "release", "case-8", "--owner", "legal", "--yes")
    assert status == 0
    assert "r17 of s/t is still deferred by other holds (ann: request)" in out
    assert "cannot be undone" not in out
    status, _, reported = penstock("hold", "release", "case-7", "--owner", "legal")
    assert status == 2
    assert "r17 of s/t begins at once (ann: request)" in reported
    assert "an erasure cannot be undone" in reported
    assert "r18" not in reported
    assert store.erasures().show("r17").state == "deferred"
    _, out, _ = penstock("hold", "release", "case-7", "--owner", "legal", "--yes", "--json")
    assert json.loads(out)["lost"]["erasures"] == ["r17"]


def test_a_search_on_spark_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def searched(*_: object, **__: object) -> NoReturn:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(spark_erase, "spark_session", searched)
    (tmp_path / "values").write_text("ann\n")
    words = [
        "spark",
        "erase",
        "s/t",
        "--json-field",
        "user",
        "--values-from",
        str(tmp_path / "values"),
        "--reason",
        "r17",
    ]
    monkeypatch.setattr(sys, "argv", ["penstock", *words])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    reported = capsys.readouterr().err
    assert "--yes" in reported
    assert "--dry-run" in reported
