"""A process that is killed while it decides, signs and replaces its key: everything that it has given out still holds."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

import penstock
from penstock.core.evidence.verify import verify

PROGRAM = """
import json, sys
import penstock

with penstock.open(sys.argv[1]) as store:
    store.create_stream("s/t", if_absent=True, create_scope=True)
    audit = store.audit()
    print(json.dumps({"key": audit.log().key}), flush=True)
    number = 0
    while True:
        number += 1
        hold = store.holds("s/t").add(owner="o", reason=f"{number}")
        store.holds("s/t").release(hold.id, owner="o")
        if number % 3 == 0:
            print(json.dumps({"note": audit.checkpoint().note}), flush=True)
        if number % 5 == 0:
            audit.rotate_key()
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_what_was_signed_before_a_kill_holds_after_it(tmp_path, seed):
    rng, given = random.Random(seed), []
    for _ in range(6):
        child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / "store")], stdout=subprocess.PIPE)
        assert child.stdout is not None
        given.append(child.stdout.readline())
        time.sleep(rng.random())
        child.send_signal(signal.SIGKILL)
        given += child.stdout.read().splitlines(keepends=True)[:-1]
        child.stdout.close()
        child.wait()
    lines = [line for line in map(parsed, given) if line]
    first = next(line["key"] for line in lines if "key" in line)
    notes = {f"note {number}": line["note"].encode() for number, line in enumerate(lines) if "note" in line}
    with penstock.open(tmp_path / "store") as store:
        parts = []
        store.audit().export(parts.append)
        now = store.audit().checkpoint().note.encode()
        assert len(list((tmp_path / "store" / "audit-keys").iterdir())) <= 2
    report = verify({"export": b"".join(parts), **notes}, [first], known=dict(notes))
    assert report.holds, report.findings
    assert verify({"now": now, "export": b"".join(parts)}, [first]).holds or len(notes) == 0
    assert len(notes) > 3


def parsed(line):
    return json.loads(line) if line.endswith(b"\n") else {}
