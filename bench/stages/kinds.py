"""What kind of work a process does, by ``perf``: system calls, first touches of memory, copies, checksums, interpreter."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SAMPLES_PER_S = 997
_LIBRARIES = (
    ("_crc32c", "checksum"),
    ("libpython", "interpreter"),
    ("libc.so", "libc: copies and malloc"),
    ("uvloop", "uvloop"),
    ("numpy", "numpy"),
    ("arrow", "Arrow"),
)
# Kernel functions by what they are called for; the first that is on the stack decides.
_KERNEL = (
    (r"sock_recvmsg|sock_read_iter|inet_recvmsg", "receive"),
    (r"sock_sendmsg|sock_write_iter|inet_sendmsg|__sys_sendto", "send"),
    (r"epoll", "poll"),
    (r"futex", "thread locks"),
    (r"fdatasync|fsync", "sync of files"),
    (r"write_iter|pwrite|do_writev|ksys_write|vfs_write", "write files"),
    (r"read_iter|vfs_read|pread", "read files"),
    (r"sys_(openat|rename\w*|unlink\w*|mkdir\w*|newfstat\w*|stat\w*|ftruncate|fallocate)", "open, rename, unlink"),
    (r"sys_(mmap|munmap|madvise|brk)", "map memory"),
)
_CALLS = [(re.compile(pattern), name) for pattern, name in _KERNEL]
FRESH = "first touches of memory"


def kind_of(stack: list[tuple[str, str]]) -> str:
    """The kind of one sample; frames are (symbol, library), innermost first."""
    names = " ".join(symbol for symbol, library in stack if "kernel" in library)
    if stack and "kernel" in stack[0][1]:
        call = next((name for pattern, name in _CALLS if pattern.search(names)), "the rest")
        if "page_fault" in names:
            return f"kernel: {FRESH}" + (f", while it {call}s" if call == "receive" else "")
        return f"kernel: {call}"
    library = stack[0][1] if stack else ""
    return next((name for part, name in _LIBRARIES if part in library), "other native code")


def _samples(text: Iterator[str]) -> Iterator[list[tuple[str, str]]]:
    stack: list[tuple[str, str]] = []
    for line in text:
        words = line.split()
        if not words:
            if stack:
                yield stack
            stack = []
        elif line.startswith((" ", "\t")) and len(words) >= 2:
            stack.append((words[1].partition("+")[0], words[-1].strip("()").rpartition("/")[2] or words[-1]))
    if stack:
        yield stack


@contextmanager
def kinds(pids: Mapping[str, int], directory: Path) -> Iterator[dict[str, dict[str, float]]]:
    """Record the processes while the block runs; after it, the share of each kind. Empty without ``perf``."""
    found: dict[str, dict[str, float]] = {}
    if shutil.which("perf") is None:
        yield found
        return
    running = {}
    for name, pid in pids.items():
        command = [
            *("perf", "record", "-q", "-F", str(SAMPLES_PER_S), "-e", "cpu-clock", "-g"),
            *("-o", str(directory / f"{name}.perf"), "-p", str(pid)),
        ]
        running[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(2)  # on a busy machine it takes that long to begin
    try:
        yield found
    finally:
        for one in running.values():
            one.send_signal(signal.SIGINT)
        for one in running.values():
            one.wait(60)
    for name in pids:
        script = subprocess.run(
            ["perf", "script", "-i", str(directory / f"{name}.perf"), "-F", "ip,sym,dso"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        ).stdout
        counts = Counter(kind_of(stack) for stack in _samples(iter(script.splitlines())))
        total = sum(counts.values()) or 1
        found[name] = {kind: count / total for kind, count in counts.most_common()}
