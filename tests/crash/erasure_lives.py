"""A store with secrets in it, and processes that are killed while they erase them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import penstock

SECRET = b"canary-7f3a"
COUNT = 6000
WAIT_S = 60.0


def is_secret(number: int) -> bool:
    return number % 9 == 4


def event(number: int) -> bytes:
    return (SECRET if is_secret(number) else b"plain") + b" %d " % number + b"x" * (number % 200)


def fill(data: Path) -> None:
    with penstock.open(data) as store:
        stream = store.create_stream("s/t", segments=2, create_scope=True)
        with stream.writer() as writer:
            for number in range(COUNT):
                writer.write(event(number), key=str(number % 30))


def erasing(store: penstock.Store) -> bool:
    """Whether the erasure was decided, by this life or an earlier one."""
    return any(item.erasure == "e" and item.state != "gathering" for item in store.erasures())


def killed_life(program: str, data: Path, seed: int, rng: random.Random) -> bool:
    """Run ``python -m program data seed``, and kill it some time after it has opened the store.

    Returns whether it had the receipt by then.
    """
    command = [sys.executable, "-m", program, str(data), str(seed)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        time.sleep(rng.random() ** 2 * 1.2)
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read()
    return "done" in rest
