"""Children of the demo end with all that they started."""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.app.demo.processes import Child
from penstock.model.errors import UnavailableError

# The grandchild leaves the process group, as Spark's Python daemon does, and does not listen to SIGTERM.
GRANDCHILD = (
    "import os, signal, threading; os.setpgid(0, 0); signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print(os.getpid(), flush=True); threading.Event().wait(120)"
)
CHILD = f"""
import json, subprocess, sys, threading
made = subprocess.Popen([sys.executable, "-c", {GRANDCHILD!r}], stdout=subprocess.PIPE, text=True)
print(json.dumps({{"grandchild": int(made.stdout.readline())}}), flush=True)
if sys.argv[1] == "stay":
    threading.Event().wait(120)
"""


@pytest.mark.parametrize("way", ["stop", "kill", "ended"])
def test_a_child_takes_what_it_started_with_it(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.app.demo.processes._LINGER_S", 0.2)
    said = threading.Event()

    def on_line(name: str, values: dict[str, Any]) -> None:
        said.set()

    child = Child("child", ["-c", CHILD, "go" if way == "ended" else "stay"], tmp_path / "log", on_line)
    try:
        assert said.wait(20), child.tail()
        descriptor = os.pidfd_open(child.last["grandchild"])
        try:
            assert os.getsid(child.last["grandchild"]) == child.process.pid != os.getsid(0)
            if way == "ended":
                assert child.process.wait(20) == 0
            if way == "kill":
                child.kill()
            else:
                child.stop()
            assert select.select([descriptor], [], [], 10)[0], "the grandchild is still there"
        finally:
            os.close(descriptor)
        assert child.members() == []
        assert not child.running
    finally:
        child.kill()


@pytest.mark.parametrize(("words", "printed"), [("", "is empty"), ("why it ended", "ends:\nwhy it ended")])
def test_a_child_that_fails_is_told_with_its_log(words: str, printed: str, tmp_path: Path) -> None:
    code = f"import sys; print({words!r}, end='', file=sys.stderr); sys.exit(3)"
    child = Child("child", ["-c", code], tmp_path / "log", lambda *_: None)
    with pytest.raises(UnavailableError) as caught:
        child.finish(20)
    assert str(caught.value) == f"the child failed with status 3; its log {tmp_path / 'log'} {printed}"
    child.stop()
