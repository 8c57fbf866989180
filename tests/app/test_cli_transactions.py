"""``penstock txn`` on a data directory without a server."""

import getpass
import io
import json
import os
import sys
from uuid import UUID

import pytest

from penstock import open as open_store
from penstock.app.cli.main import main
from penstock.codec.audit import decode_entry
from penstock.model.errors import InvalidArgumentError, TransactionNotFoundError, TransactionStateError

UNKNOWN = str(UUID(int=7))


@pytest.fixture
def penstock(tmp_path, capfdbinary, monkeypatch):
    """Runs one command on a directory of its own; gives (status, stdout, stderr)."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["penstock", "txn", *words, "--data", str(tmp_path / "data")])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfdbinary.readouterr()
        return ended.value.code, out.decode(), err.decode()

    return run


def test_transactions_are_listed_described_and_aborted(penstock, tmp_path):
    with open_store(tmp_path / "data") as store:
        stream = store.create_stream("s/t", segments=2, create_scope=True)
        with stream.transaction() as committed:
            committed.write(b"x")
        left = stream.transaction(lease_s=600)
        left.open()
        left.write_many([b"y" * 100] * 3, ["a", "b", "c"])
        left.flush()
        txn = str(left.id)
        # As in a crash: nobody commits or aborts it.
        store.call(lambda _: left._inner.abandon())
    status, out, _ = penstock("list", "s/t")
    assert status == 0
    assert txn in out
    assert "324 B" in out
    assert "left" in out
    (row,) = map(json.loads, penstock("list", "s/t", "--json")[1].splitlines())
    assert (row["transaction"], row["state"], row["bytes"], row["writer"]) == (txn, "open", 324, "")
    assert row["begun_ms"] + 600_000 <= row["expires_ms"] <= row["deadline_ms"]
    found = json.loads(penstock("describe", "s/t", txn, "--json")[1])
    assert sum(found["bytes"].values()) == 324
    assert set(found["bytes"]) == {"0#0", "1#0"}
    out = penstock("describe", "s/t", txn)[1]
    assert "its writer, or the end of its lease" in out
    assert "segment 0#0" in out

    # It shows what is lost, and asks.
    status, _, err = penstock("abort", "s/t", txn)
    assert status == 2
    assert "324 B" in err
    assert "--yes" in err
    status, out, _ = penstock("abort", "s/t", txn, "--yes", "--json")
    assert status == 0
    assert json.loads(out)["lost"]["bytes"] == 324
    assert penstock("abort", "s/t", txn)[0] == 0  # again: nothing is lost
    assert json.loads(penstock("describe", "s/t", txn, "--json")[1])["state"] == "aborted"
    assert txn not in penstock("list", "s/t")[1]

    committed_id = str(committed.id)
    assert "committed" in penstock("describe", "s/t", committed_id)[1]
    assert penstock("abort", "s/t", committed_id, "--yes")[0] == 4
    assert penstock("describe", "s/t", UNKNOWN)[0] == 3
    assert penstock("abort", "s/t", UNKNOWN, "--yes")[0] == 3
    assert penstock("describe", "s/t", "first")[0] == 2
    assert penstock("list", "s/none")[0] == 3


def test_a_program_describes_and_aborts_a_transaction_of_another(tmp_path):
    with open_store(tmp_path / "data") as store:
        stream = store.create_stream("s/t", create_scope=True)
        other = stream.transaction()
        other.open()
        other.write(b"x")
        other.flush()
        assert stream.describe_transaction(other.id).bytes == {"0#0": 9}
        stream.abort_transaction(str(other.id))
        with pytest.raises(TransactionStateError):
            other.commit()
        with pytest.raises(TransactionNotFoundError):
            stream.abort_transaction(UNKNOWN)
        for wrong in ("first", 7, None):
            with pytest.raises(InvalidArgumentError):
                stream.describe_transaction(wrong)


def test_an_abort_of_a_user_without_a_name_is_audited(penstock, tmp_path, monkeypatch):
    with open_store(tmp_path / "data") as store:
        stream = store.create_stream("s/t", create_scope=True)
        left = stream.transaction(lease_s=600)
        left.open()
        txn = str(left.id)
        store.call(lambda _: left._inner.abandon())

    def nameless():
        raise OSError("no such user")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert "unknown" in penstock("list", "s/t")[1]
    status, _, err = penstock("abort", "s/t", txn, "--yes")
    assert (status, err) == (0, "")
    # The next opening of the store completes the audit stream.
    with open_store(tmp_path / "data") as store, store.stream("_system/audit").reader() as reader:
        while (event := reader.read(timeout_s=20)) is not None:
            entry = decode_entry(event.data)
            if entry["kind"] == "abort":
                break
    assert (entry["transaction"], entry["caller"]) == (txn, {"who": f"uid {os.getuid()}", "via": "cli"})
