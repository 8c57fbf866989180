"""What ``penstock`` itself offers: its names, its entrances, and how a script that closes nothing ends."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys

import pytest

import penstock
from penstock.client import GroupReader, Reader, ReaderGroup, Store, Stream, Transaction, Writer
from penstock.client.blocking.stores import Retention

OPEN = """
import penstock
s = penstock.open({path!r})
stream = s.create_stream("a/s", create_scope=True, retention=penstock.RetentionPolicy(type="size", maximum=1 << 30))
writer = stream.writer()
writer.write_many([b"%d" % number for number in range(5000)])
reader = stream.reader()
reader.read()
transaction = stream.transaction()
transaction.open()
transaction.write("never committed")
writer.write("last")
"""


def run(script, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(script.format(path=str(tmp_path / "data")))
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False)


def count(path):
    with penstock.open(path) as store, store.stream("a/s").reader(until_tail=True) as reader:
        found = [event.data for event in reader]
    assert found[-1] == b"last"
    return len(found)


@pytest.mark.parametrize(
    ("ending", "status", "last_line"),
    [
        ("", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise ValueError('the user\\'s own')", 1, "ValueError: the user's own"),
        ("raise KeyboardInterrupt", -2, "KeyboardInterrupt"),
        ("import sys; sys.exit('bye')", 1, "bye"),
    ],
)
def test_a_script_that_closes_nothing_ends_quietly_and_loses_nothing(tmp_path, ending, status, last_line):
    done = run(OPEN + ending + "\n", tmp_path)
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    if last_line.startswith(("Value", "Keyboard")):
        first, *between, last = done.stderr.splitlines()
        assert first.startswith("Traceback")
        assert last == last_line
        assert all("script.py" in line or "raise" in line for line in between), done.stderr
    else:
        assert done.stderr.strip() == last_line
    assert count(tmp_path / "data") == 5001


def test_two_stores_of_one_script_are_both_closed(tmp_path):
    done = run(OPEN + "t = penstock.open({path!r} + '2')\nt.create_scope('b')\nraise SystemExit(3)\n", tmp_path)
    assert (done.returncode, done.stderr) == (3, "")
    assert count(tmp_path / "data") == 5001
    with penstock.open(tmp_path / "data2") as store:
        assert "b" in store.scopes()


def test_a_forked_child_closes_nothing_of_its_parent(tmp_path):
    fork = "import os\npid = os.fork()\nif pid: assert os.waitpid(pid, 0)[1] == 0\nelse: raise SystemExit(0)\n"
    done = run(OPEN + fork + "assert stream.exists()\n", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert count(tmp_path / "data") == 5001


def test_every_name_is_there_and_none_is_loaded_before_it_is_used():
    script = (
        "import sys, penstock\n"
        "loaded = [name for name in sys.modules if name.startswith('penstock.')]\n"
        "heavy = {'asyncio', 'grpc', 'pyarrow', 'numpy', 'dataclasses'} & set(sys.modules)\n"
        "penstock.RetentionPolicy, penstock.StreamCut, penstock.errors\n"
        "heavy |= {'asyncio', 'grpc', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "print(loaded, sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None, name
        assert name in dir(penstock)
    assert issubclass(penstock.errors.StreamNotFoundError, penstock.PenstockError)
    assert penstock.Store is Store
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        penstock.nonsense  # noqa: B018 - the look-up is what is tested


def test_the_asynchronous_store_is_one_call_away(tmp_path):
    async def use():
        async with penstock.open_async(tmp_path / "data", memory_bytes=64 << 20) as store:
            assert isinstance(store, penstock.AsyncStore)
            stream = await store.create_stream("a/s", create_scope=True)
            async with stream.writer() as writer:
                await writer.write("x")
            async with stream.reader(until_tail=True) as reader:
                return [event.data async for event in reader]

    assert asyncio.run(use()) == [b"x"]

    async def wrong():
        with penstock.open(tmp_path / "data") as store:
            async with store:
                pass

    with pytest.raises(TypeError, match="open_async"):
        asyncio.run(wrong())


def test_a_connection_to_nobody_is_given_up_soon():
    address = "127.0.0.1:1"
    for connect in (penstock.connect, penstock.connect_async):
        assert inspect.signature(connect).parameters["dial_s"].default == 5.0
    with pytest.raises(penstock.errors.NotConnectedError) as caught:
        penstock.connect(address, dial_s=0.1)
    assert "?." not in str(caught.value)

    async def use():
        async with penstock.connect_async(address, dial_s=0.1):
            pass

    with pytest.raises(penstock.errors.NotConnectedError):
        asyncio.run(use())


def test_settings_that_there_are_not_are_named_as_typed(tmp_path):
    with pytest.raises(penstock.errors.InvalidArgumentError, match="an embedded store has no such option") as caught:
        penstock.open(tmp_path / "data", memory_byte=3)
    assert caught.value.fields["option"] == "memory_byte"
    assert "memory_bytes" in caught.value.fields["known"]
    assert "data" not in caught.value.fields["known"].split(", ")
    with pytest.raises(penstock.errors.InvalidArgumentError, match="option=memory_bytes value='1GB'"):
        penstock.open(tmp_path / "data", memory_bytes="1GB")
    assert not (tmp_path / "data").exists()


def test_a_directory_that_this_process_has_open_is_said_to_be_so(tmp_path):
    with penstock.open(tmp_path / "data") as store:
        assert repr(store) == f"<Store in {tmp_path / 'data'}, open>"
        with pytest.raises(penstock.errors.DirectoryInUseError, match="this process has") as caught:
            penstock.open(tmp_path / "data")
        assert caught.value.fields["pid"] == str(os.getpid())
        script = "import penstock; penstock.open({path!r})\n"
        assert "another process uses the data directory" in run(script, tmp_path).stderr
    penstock.open(tmp_path / "data").close()


def test_the_first_transaction_has_an_id_that_is_not_zero(tmp_path):
    with penstock.open(tmp_path / "data") as store:
        stream = store.create_stream("a/s", create_scope=True)
        with stream.transaction() as txn:
            assert txn.id.int != 0


@pytest.mark.parametrize("kind", [Store, Stream, Writer, Reader, ReaderGroup, GroupReader, Retention, Transaction])
def test_help_says_something_of_every_method(kind):
    texts = {
        name: inspect.getdoc(member)
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    }
    assert len(texts) >= 4
    for name, text in [(kind.__name__, inspect.getdoc(kind)), *texts.items()]:
        assert text is not None, name
        assert len(text.split()) >= 4, (name, text)
        assert "Async" not in text, (name, text)


def test_the_audit_names_the_caller_of_an_embedded_store(tmp_path):
    with penstock.open(tmp_path / "data", memory_bytes=64 << 20) as store:
        stream = store.create_stream("a/s", create_scope=True)
        with stream.writer() as writer:
            writer.write("x")
        with penstock.calling(penstock.Caller(who="ann", why="ticket 7")):
            stream.truncate(stream.tail())
        stream.delete(seal=True)
        store._thread.call(store._inner.controller.drain_audit())
        with store.stream("_system/audit").reader(until_tail=True, start="head") as reader:
            found = [json.loads(event.data) for event in reader]
    callers = {entry["kind"]: entry.get("caller") for entry in found}
    assert callers == {"truncate": {"who": "ann", "why": "ticket 7"}, "delete": None}
