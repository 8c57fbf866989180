"""Laws of the table of stages: the kernel's account of a thread is shared by its own samples, and who asked counts."""

from __future__ import annotations

import pytest

from bench.stages.kinds import kind_of
from bench.stages.rules import LOOP, stage_of
from bench.stages.sampling import NO_PYTHON, fold

_LOG = "LocalLog._commit_all (penstock/storage/log/local_log.py:368)"
_WRITE = "write_all (penstock/storage/machine/calls.py:67)"
_WAIT = "_serve (penstock/storage/machine/offload.py:206)"


def test_a_call_of_a_file_belongs_to_the_stage_that_asked_for_it() -> None:
    assert stage_of(["run (uvloop/loop.py:1)", _LOG, _WRITE]) == (
        "log: write and sync",
        "storage/machine/calls.py:67 write_all",
    )
    assert stage_of([_WAIT, _WRITE])[0] == "file calls in threads"
    assert stage_of(["main (else.py:1)"]) == (LOOP, "main (else.py:1)")


def test_each_thread_weighs_what_the_kernel_counted_whatever_its_samples() -> None:
    lines = [f"thread (7): Main;{_LOG} 90", f"thread (8): helper;{_WAIT};{_WRITE} 1", f"thread (8): helper;{_WAIT} 500"]
    found = fold(iter(lines), {7: 1.0, 8: 3.0, 9: 0.5})
    assert found.stages == {"log: write and sync": 1.0, "file calls in threads": 3.0, NO_PYTHON: 0.5}
    assert sum(found.shares().values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        ([("clear_page", "[kernel.kallsyms]"), ("exc_page_fault", "[kernel.kallsyms]"), ("sock_recvmsg", "[kernel.kallsyms]")],
         "kernel: first touches of memory, while it receives"),
        ([("x", "[kernel.kallsyms]"), ("tcp_sendmsg", "[kernel.kallsyms]"), ("sock_sendmsg", "[kernel.kallsyms]")],
         "kernel: send"),
        ([("_PyEval_EvalFrameDefault", "libpython3.11.so.1.0")], "interpreter"),
    ],
)  # fmt: skip
def test_a_system_call_is_named_by_what_it_was_called_for(stack: list[tuple[str, str]], kind: str) -> None:
    assert kind_of(stack) == kind
