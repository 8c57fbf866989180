"""A secret in a URL is never printed: not by a command, not by an error, not by a log, and it is in no file."""

from __future__ import annotations

import io
import json
import logging
import pickle
import sys
import time
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.app.cli.main import main
from penstock.app.logs import FieldsFormatter, JsonFormatter
from penstock.model.callers import Caller, calling
from penstock.model.errors import PenstockError
from penstock.model.redaction import redacted, redacted_address
from penstock.net.dial.addresses import parse_address
from tests.command_line import whole_tree

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfi"
PLAIN = SECRET.replace("/", "")
NAMES = ("controller", "tier2", "endpoint", "s3_endpoint", "place", "source", "store")
URLS = (
    f"s3://AKIA:{SECRET}@bucket/prefix",
    f"http://AKIA:{PLAIN}@127.0.0.1:9",
    f"pravega://user:{PLAIN}@127.0.0.1:9",
    f"user:{PLAIN}@127.0.0.1:9",
    f"http://127.0.0.1:9/?X-Amz-Signature={PLAIN}",
)

FORMATTERS = (FieldsFormatter(), JsonFormatter())
SECRET_FIELDS = ("token", "password", "aws_secret_access_key", "Authorization", "set-cookie", "private_key_passphrase")

characters = st.characters(blacklist_categories=("Z", "C"), blacklist_characters="'\"&=")
secrets = st.text(characters, min_size=12).map(lambda text: f"<{text}>")
schemes = st.sampled_from(["s3://", "http://", "https://", "pravega://", "s3:/"])


@given(scheme=schemes, user=st.text("abcXYZ019", min_size=1), secret=secrets, before=st.text(), after=st.text())
def test_no_part_of_a_text_shows_the_secret_of_a_url(scheme, user, secret, before, after):
    url = f"{scheme}{user}:{secret}@bucket/prefix"
    for text in (url, f"{before} {url} {after}", f"{scheme}bucket/prefix?AWS_SECRET_ACCESS_KEY={secret}&a=b"):
        assert redacted_address(redacted_address(text)) == redacted_address(text)
        if secret not in before + after:
            assert secret not in redacted(text)
        assert redacted(redacted(text)) == redacted(text)
    assert secret not in redacted_address(f"{user}:{secret}@host:9090")


@given(text=st.text("abc/:.-_ 019=&?", max_size=60))
def test_a_text_without_a_secret_stays_as_it_is(text):
    assert redacted(text) == text


pieces = st.lists(
    st.sampled_from(["?", "key", "=", "&", "@", ":", "/", "a", "s3:/", " ", "'", "é"]), min_size=1, max_size=4
)


@given(piece=pieces.map("".join), end=st.sampled_from(["", "=", "@", " =", " @", "=@"]))
@settings(deadline=None)
def test_a_text_that_anyone_may_send_is_searched_in_time_that_grows_with_its_length(piece, end):
    text = piece * (3_000 // len(piece)) + end
    began = time.process_time()
    redacted(text)
    redacted_address(text)
    assert time.process_time() - began < 0.1


@pytest.mark.parametrize("url", URLS)
def test_errors_and_logs_do_not_show_it(url):
    try:
        parse_address(url)
    except PenstockError as refused:
        shown = [str(refused), repr(refused), repr(pickle.loads(pickle.dumps(refused))), json.dumps(refused.fields)]
    else:
        shown = []
    if "://" in url:
        error = PenstockError(f"no answer from {url}", url=url, tried=(url, 1))
        shown += [str(error), repr(error), json.dumps(error.fields), repr(pickle.loads(pickle.dumps(error)))]
        record = logging.LogRecord("a", logging.INFO, "", 1, "asked %s", (url,), None)
        record.__dict__["url"] = url
        shown += [formatter.format(record) for formatter in FORMATTERS]
    assert shown
    assert not [text for text in shown if SECRET in text or PLAIN in text]


@pytest.mark.parametrize("formatter", FORMATTERS)
@pytest.mark.parametrize("name", SECRET_FIELDS)
def test_a_field_with_the_name_of_a_secret_is_hidden_in_logs(formatter, name):
    record = logging.LogRecord("a", logging.INFO, "", 1, "a field", (), None)
    record.__dict__[name] = SECRET
    assert SECRET not in formatter.format(record)


@pytest.mark.parametrize("formatter", FORMATTERS)
@pytest.mark.parametrize("url", [url for url in URLS if "://" in url])
def test_neither_a_caller_nor_a_request_nor_a_traceback_shows_it_in_logs(formatter, url):
    try:
        try:
            raise OSError(f"no answer from {url}")
        except OSError as cause:
            raise PenstockError("it failed", place=url) from cause
    except PenstockError:
        record = logging.LogRecord("a", logging.ERROR, "", 1, "it failed", (), sys.exc_info())
    record.__dict__["deep"] = {"urls": [url]}
    with calling(Caller(who=url, via="http", peer=url), f"GET {url}"):
        line = formatter.format(record)
    assert SECRET not in line
    assert PLAIN not in line


def commands(command=None, words=()):
    """Every command that takes a URL, and the parameter that does."""
    command = whole_tree() if command is None else command
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from commands(found, (*words, name))
        return
    for parameter in command.params:
        if parameter.name in NAMES:
            yield words, command, parameter


def urls_for(name, number):
    """Those that differ for this parameter; all commands share the options for the controller and the endpoint."""
    if name == "controller":
        return (URLS[number % len(URLS)],)
    return (URLS[1], URLS[4]) if name.endswith("endpoint") else URLS


CASES = [
    pytest.param(*case, urls_for(case[2].name, number), id=" ".join((*case[0], case[2].name)))
    for number, case in enumerate(commands())
]


def test_commands_that_take_urls_are_found():
    taken = {(words[0], parameter.name) for words, _, parameter in commands()}
    assert {("standalone", "tier2"), ("standalone", "s3_endpoint"), ("stream", "controller")} <= taken


@pytest.mark.parametrize(("words", "command", "parameter", "urls"), CASES)
def test_no_command_shows_it_nor_writes_it(words, command, parameter, urls, tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    for url in urls:
        line = ["penstock", *words]
        for other in command.params:
            if other is parameter and parameter.param_type_name == "argument":
                line.append(url)
            elif other.param_type_name == "argument" and other.required:
                line += ["s/t"]
            elif other is not parameter and other.required:
                line += [other.opts[0], "1"]
        if parameter.param_type_name != "argument":
            line += [parameter.opts[0], url]
        if parameter.name.endswith("endpoint") and "tier2" in {one.name for one in command.params}:
            line += ["--tier2", "s3://bucket/prefix"]
        monkeypatch.setattr(sys, "argv", line)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code not in (0, None)
        out, err = capfdbinary.readouterr()
        kept = b"".join(path.read_bytes() for path in Path(tmp_path).rglob("*") if path.is_file())
        names = "".join(map(str, Path(tmp_path).rglob("*"))).encode()
        for secret in (SECRET.encode(), PLAIN.encode()):
            assert secret not in out + err + kept + names


def test_a_client_does_not_show_it():
    for url in URLS:
        with pytest.raises(PenstockError) as caught:
            penstock.connect(url)
        assert PLAIN not in repr(caught.value)
        assert SECRET not in repr(caught.value)
