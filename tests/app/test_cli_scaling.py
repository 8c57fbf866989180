"""``penstock stream scaling``, and scaling by rate through ``create`` and ``describe``."""

from __future__ import annotations

import io
import json
import sys

import pytest

from penstock.app.cli.main import main


@pytest.fixture
def penstock(tmp_path, capfdbinary, monkeypatch):
    """Runs one command on a directory of its own; gives (status, stdout, stderr)."""

    def run(*words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", *words, "--data", str(tmp_path / "data")])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfdbinary.readouterr()
        return ended.value.code, out.decode(), err.decode()

    return run


def test_a_stream_by_rate_is_created_described_explained_and_made_fixed_again(penstock) -> None:
    assert penstock("stream", "create", "s/t", "--segments", "2", "--events-per-s", "100", "--factor", "4")[0] == 0
    status, out, _ = penstock("stream", "describe", "s/t")
    assert status == 0
    assert "by rate: 100 events/s for each segment, factor 4, at least 2" in out
    scaling = json.loads(penstock("stream", "describe", "s/t", "--json")[1])["scaling"]
    assert scaling["policy"] == {"type": "events", "target_rate": 100, "factor": 4, "min_segments": 2}
    assert scaling["action"] == "none"
    assert [item["heat"] for item in scaling["segments"]] == ["new", "new"]
    assert "min" in penstock("stream", "scaling", "explain", "s/t")[1]
    assert penstock("stream", "scaling", "set", "s/t", "--kbytes-per-s", "50", "--segments", "3")[0] == 0
    found = json.loads(penstock("stream", "scaling", "explain", "s/t", "--json")[1])
    assert (found["policy"]["type"], len(found["segments"])) == ("kbytes", 3)
    assert penstock("stream", "scaling", "set", "s/t", "--segments", "1")[0] == 0
    found = json.loads(penstock("stream", "scaling", "explain", "s/t", "--json")[1])
    assert (found["policy"]["type"], found["reason"]) == ("fixed", "The number of segments is fixed.")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--events-per-s", "0"], "--events-per-s must be a whole number from 1"),
        (["--kbytes-per-s", "-5"], "--kbytes-per-s must be a whole number from 1"),
        (["--events-per-s", "10", "--factor", "1"], "--factor must be a whole number from 2"),
        (["--events-per-s", "10", "--kbytes-per-s", "10"], "not both"),
        (["--events-per-s", "10", "--segments", "10001"], "1 to 10000 segments"),
        (["--events-per-s", "99999999999999999999"], "--events-per-s must be"),
        (["--factor", "3"], "--factor needs a rate"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_and_changes_nothing(penstock, options: list[str], said: str) -> None:
    status, _, err = penstock("stream", "create", "s/t", *options)
    assert status != 0
    assert said in err
    assert penstock("stream", "create", "s/t")[0] == 0, "there was no such stream"
    status, _, err = penstock("stream", "scaling", "set", "s/t", *options)
    assert status != 0
    assert said in err
    assert json.loads(penstock("stream", "scaling", "explain", "s/t", "--json")[1])["policy"]["type"] == "fixed"


def test_a_stream_without_a_rate_keeps_the_segments_that_it_has(penstock) -> None:
    assert penstock("stream", "create", "s/t", "--segments", "5")[0] == 0
    assert penstock("stream", "scaling", "set", "s/t")[1] == "s/t: fixed number of segments: 5 segments\n"
    assert penstock("stream", "scaling", "set", "s/t", "--events-per-s", "100")[0] == 0
    assert penstock("stream", "scaling", "set", "s/t")[1] == "s/t: fixed number of segments: 5 segments\n"
    found = json.loads(penstock("stream", "describe", "s/t", "--json")[1])
    assert (found["epoch"], len(found["segments"])) == (0, 5)
    assert penstock("stream", "scaling", "set", "s/t", "--segments", "2")[0] == 0
    assert len(json.loads(penstock("stream", "describe", "s/t", "--json")[1])["segments"]) == 2
