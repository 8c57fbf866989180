"""Errors name the file that is wrong, print times as people read them, and ask for nothing that cannot be undone."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from typer.testing import CliRunner

import penstock
from penstock.app.cli.main import app
from penstock.model.credentials import Credentials
from penstock.model.errors import (
    ApprovalRequiredError,
    InvalidArgumentError,
    StreamNotSealedError,
    UnauthenticatedError,
)
from penstock.net.dial.presenting import Presenting
from penstock.testing.fakes import FakeClock


@pytest.mark.parametrize("content", [None, b"\xff\xfe", "directory"])
def test_a_file_with_a_public_key_that_cannot_be_read_is_named(tmp_path, content):
    export, key = tmp_path / "export", tmp_path / "penstock.pub"
    export.write_text("x")
    if content == "directory":
        key.mkdir()
    elif content is not None:
        key.write_bytes(content)
    found = CliRunner().invoke(app, ["verify", str(export), "--public-key", str(key)])
    assert isinstance(found.exception, InvalidArgumentError)
    assert found.exception.fields["file"] == str(key)
    assert ("no such file" in str(found.exception)) is (content is None)


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff", None])
def test_a_file_with_a_bad_token_is_named(tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UnauthenticatedError) as caught:
        asyncio.run(Presenting(Credentials.bearer_file(file), FakeClock()).header())
    assert caught.value.fields["path"] == str(file)


def test_a_time_is_printed_as_a_time_and_stays_a_number_for_programs():
    error = ApprovalRequiredError("wait", request="r", expires_ms=1_795_345_320_324)
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one) == "wait. request=r expires=2026-11-22T11:02:00Z"
        assert one.fields["expires_ms"] == 1_795_345_320_324
    odd = InvalidArgumentError("wait", from_ms=10**30, until_ms=5, lease_ms=10**12, to_ms=None)
    assert str(odd) == f"wait. from_ms={10**30} until_ms=5 lease_ms={10**12} to_ms=None"


def test_nobody_is_told_to_seal_a_stream_before_its_deletion_is_allowed(tmp_path):
    with penstock.open(tmp_path / "data") as store:
        stream = store.create_stream("s/t", create_scope=True)
        with pytest.raises(StreamNotSealedError, match="seals it once its deletion is allowed"):
            stream.delete()
    found = CliRunner().invoke(app, ["stream", "delete", "s/t", "--yes", "--data", str(tmp_path / "data")])
    assert "seals it once its deletion is allowed" in str(found.exception)
