"""A store in this process leaves the program's signals alone."""

from __future__ import annotations

import faulthandler
import os
import signal

import penstock


def test_single_writes_leave_handlers_of_signals_in_place(tmp_path):
    came = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    # Python still names the handler that faulthandler's has replaced: to put that "back" would undo the registration.
    replaced = signal.signal(signal.SIGUSR2, lambda number, frame: None)
    with (tmp_path / "stacks").open("w+") as stacks, penstock.open(tmp_path / "store") as store:
        faulthandler.register(signal.SIGUSR2, file=stacks)
        try:
            with store.create_stream("s/signals", create_scope=True).writer(linger_s=0) as writer:
                for number in range(20):
                    writer.write(b"event %d" % number)
                    os.kill(os.getpid(), signal.SIGUSR1)
                    os.kill(os.getpid(), signal.SIGUSR2)
                    writer.flush()
            os.kill(os.getpid(), signal.SIGUSR2)
        finally:
            faulthandler.unregister(signal.SIGUSR2)
            signal.signal(signal.SIGUSR1, before)
            signal.signal(signal.SIGUSR2, replaced)
        stacks.seek(0)
        assert came == [signal.SIGUSR1] * 20
        assert stacks.read().count("Current thread") == 21
