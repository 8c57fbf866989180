"""Work in a process of its own, fresh from the interpreter.

What forks must not do so beside the threads of other tests (gRPC, Spark): such a child may wait for a lock forever.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def apart(work: Callable[..., T], /, *arguments: Any, timeout_s: float = 60, **named: Any) -> T:
    """Return what ``work`` returns, a function of a module that can be imported, and raise what it raises.

    After ``timeout_s`` seconds TimeoutExpired, with the process and all its children killed.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.apart"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        answer, _ = process.communicate(pickle.dumps((work, arguments, named)), timeout=timeout_s)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode != 0:
        raise ChildProcessError(f"{work.__qualname__} died with status {process.returncode}")
    answered: tuple[T, Exception | None] = pickle.loads(answer)
    result, error = answered
    if error is not None:
        raise error
    return result


def main() -> None:
    work, arguments, named = pickle.load(sys.stdin.buffer)
    # Its children inherit standard output; what they print is no part of the answer.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    result, error = None, None
    try:
        result = work(*arguments, **named)
    except Exception as caught:  # noqa: BLE001 - raised again by the caller
        error = caught
    with answer:
        answer.write(pickle.dumps((result, error)))


if __name__ == "__main__":
    main()
