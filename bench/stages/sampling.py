"""The CPU of a process by thread, from the kernel, and its share by stage, from samples of its stacks."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.stages.rules import stage_of, waits

SAMPLES_PER_S = 250
_THREAD = re.compile(r"^thread \((?:0x[0-9A-Fa-f]+|(\d+))\)")
NO_PYTHON = "threads without Python"


def thread_cpu_s(pid: int) -> dict[int, float]:
    """User and system time of each living thread of a process."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except FileNotFoundError:  # the thread has ended
            continue
    return found


def cpu_s(pid: int) -> float:
    """User and system time of a process, ended threads included, in steps of a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Profile:
    """Seconds of CPU by stage, and by the function that stands for it."""

    stages: Counter[str] = field(default_factory=Counter)
    places: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, stage: str, place: str, seconds: float) -> None:
        self.stages[stage] += seconds
        self.places.setdefault(stage, Counter())[place] += seconds

    def shares(self) -> dict[str, float]:
        total = sum(self.stages.values()) or 1.0
        return {name: value / total for name, value in self.stages.most_common()}

    def places_of(self, stage: str, most: int = 3) -> list[str]:
        return [name for name, _ in self.places.get(stage, Counter()).most_common(most)]


def fold(lines: Iterator[str], used_s: Mapping[int, float]) -> Profile:
    """Share the CPU of each thread among the stages of its own samples. A thread waits for most of its life, and the
    samples of one that just woke say little: so the kernel's account of it is the weight, never the number of samples."""
    by_thread: dict[int, list[tuple[list[str], int]]] = {}
    for line in lines:
        text, _, count = line.rstrip().rpartition(" ")
        frames = text.split(";")
        head = next((match for frame in frames[:2] if (match := _THREAD.match(frame))), None)
        if head is None or head[1] is None:
            continue
        stack = [frame for frame in frames if not _THREAD.match(frame) and not frame.startswith("process ")]
        if not waits(stack):
            by_thread.setdefault(int(head[1]), []).append((stack, int(count)))
    profile = Profile()
    for thread, seconds in used_s.items():
        stacks = by_thread.get(thread, [])
        total = sum(count for _, count in stacks)
        if not total:
            profile.add(NO_PYTHON, NO_PYTHON, seconds)
            continue
        for stack, count in stacks:
            profile.add(*stage_of(stack), seconds * count / total)
    return profile


def sampler() -> str:
    """The path of py-spy. Exits with what to do if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        sys.exit("stages: py-spy is needed: .venv/bin/pip install py-spy")
    return found


@contextmanager
def sampled(pids: Mapping[str, int], directory: Path) -> Iterator[dict[str, Profile]]:
    """Sample the processes while the block runs; the profiles are complete after it."""
    found: dict[str, Profile] = {}
    running = {}
    for name, pid in pids.items():
        out = directory / f"{name}.raw"
        out.unlink(missing_ok=True)
        command = [
            *(sampler(), "record", "--rate", str(SAMPLES_PER_S), "--nonblocking", "--threads", "--format", "raw"),
            *("--duration", "600", "--output", str(out), "--pid", str(pid)),
        ]
        running[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(3)  # it reads the symbols of the process first
    before = {name: thread_cpu_s(pid) for name, pid in pids.items()}
    try:
        yield found
    finally:
        after = {name: thread_cpu_s(pid) for name, pid in pids.items()}
        for one in running.values():
            one.send_signal(signal.SIGINT)
        for one in running.values():
            one.wait(60)
    for name in pids:
        used = {thread: seconds - before[name].get(thread, 0.0) for thread, seconds in after[name].items()}
        with (directory / f"{name}.raw").open(errors="replace") as lines:
            found[name] = fold(iter(lines), used)
