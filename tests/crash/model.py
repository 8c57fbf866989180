"""What must be there after a crash: per actor, the state before or after the operations that were under way.

An actor does one thing after the other (or several appends in their order), so that whatever happened is a beginning of what
it began. A journal outside the store says what began, what was acknowledged, and what a later life found.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from penstock.codec.events import frame_events
from penstock.model.errors import InternalError

Op: TypeAlias = dict[str, Any]
State: TypeAlias = Mapping[str, Any]
"""Per name: ``("segment", start, length, sealed, bytes from start on, ((writer, number), ...))``, ``("table", entries)`` or
``("stream", ((key, events), ...))``. Absent names are absent."""


def payload(tag: str, size: int) -> bytes:
    """One event that names itself, ``size`` bytes and its header."""
    text = f"{tag}|".encode()
    return bytes(frame_events([(text * (size // len(text) + 1))[: max(size, len(text))]]))


def apply(state: State, op: Op) -> State:
    """The state after an operation."""
    new = dict(state)
    name = op["name"]
    match op["do"]:
        case "create":
            new[name] = ("segment", 0, 0, False, b"", ())
        case "append":
            _, start, length, sealed, data, numbers = state[name]
            more = payload(op["tag"], op["size"])
            stored = tuple(sorted((dict(numbers) | {op["writer"]: op["number"]}).items()))
            new[name] = ("segment", start, length + len(more), sealed, data + more, stored)
        case "adopt":
            _, start, length, sealed, data, numbers = state[name]
            more = b"".join(payload(tag, size) for tag, size in op["events"])
            new[name] = ("segment", start, length + len(more), sealed, data + more, numbers)
        case "erase":
            _, start, length, sealed, data, numbers = state[name]
            first, last = op["range"][0] - start, op["range"][1] - start
            blanked = data[:first] + bytes(last - first) + data[last:]
            new[name] = ("segment", start, length, sealed, blanked, numbers)
        case "seal":
            _, start, length, _, data, numbers = state[name]
            new[name] = ("segment", start, length, True, data, numbers)
        case "truncate":
            _, start, length, sealed, data, numbers = state[name]
            upto = max(start, op["offset"])
            new[name] = ("segment", upto, length, sealed, data[upto - start :], numbers)
        case "delete":
            del new[name]
        case "merge":
            _, start, length, sealed, data, numbers = state[name]
            source = new.pop(op["source"])
            new[name] = ("segment", start, length + source[2], sealed, data + source[4], numbers)
        case "table":
            new[name] = ("table", ())
        case "put" | "remove":
            entries = dict(state[name][1])
            for key, value in op["entries"]:
                if value is None:
                    entries.pop(key, None)
                else:
                    entries[key] = value
            new[name] = ("table", tuple(sorted(entries.items())))
        case "stream":
            new[name] = ("stream", ())
        case "events":
            events = {key: list(items) for key, items in state[name][1]}
            for key, tag in op["events"]:
                events.setdefault(key, []).append(tag)
            new[name] = ("stream", tuple(sorted((key, tuple(items)) for key, items in events.items())))
        case "scale":
            pass
        case "cut":
            new[name] = ("stream", ())
        case other:
            raise InternalError("no such operation", do=other)
    return new


@dataclass(slots=True)
class Subject:
    """One actor's states: ``states[low]`` is acknowledged, those behind it may have been reached."""

    states: list[State] = field(default_factory=lambda: [{}])
    low: int = 0
    names: dict[str, set[str]] = field(default_factory=dict)
    """Every name that was ever begun, with its writers; tables and streams have ``"table"`` and ``"stream"``."""

    def begin(self, op: Op) -> None:
        self.states.append(apply(self.states[-1], op))
        known = self.names.setdefault(op["name"], set())
        if op["do"] in ("table", "stream"):
            known.add(op["do"])
        if op["do"] == "append":
            known.add(op["writer"])

    def acknowledge(self) -> None:
        self.low += 1
        if self.low >= len(self.states):
            raise InternalError("acknowledged what was never begun")

    def matching(self, seen: State) -> int | None:
        """Which of the possible states was found, or None: a promise is broken."""
        for index in range(self.low, len(self.states)):
            if dict(self.states[index]) == dict(seen):
                return index
        return None

    def resolve(self, index: int) -> None:
        """A later process has found and reported this state: it must not change any more."""
        self.states, self.low = [self.states[index]], 0


class Journal:
    """Lines in a file outside the store, one ``write`` each, so that a trace shows them in their place."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _line(self, *fields: Any) -> None:
        os.write(self._fd, json.dumps(fields, separators=(",", ":")).encode() + b"\n")

    def begin(self, actor: str, op: Op) -> None:
        self._line("begin", actor, op)

    def acknowledge(self, actor: str) -> None:
        self._line("ack", actor)

    def fail(self, actor: str, error: str) -> None:
        self._line("fail", actor, error)

    def resolve(self, actor: str, index: int) -> None:
        self._line("found", actor, index)

    def broken(self, actor: str, text: str) -> None:
        self._line("broken", actor, text)

    def close(self) -> None:
        os.close(self._fd)


class Belief:
    """All subjects, as the journal's lines up to some moment tell."""

    def __init__(self) -> None:
        self.subjects: dict[str, Subject] = {}
        self.acked = 0
        self.erased: list[bytes] = []
        """What is in no file any more."""
        self._begun: dict[str, deque[Op]] = {}
        self.failures: list[str] = []
        self.broken: list[str] = []

    def line(self, text: str | bytes) -> None:
        kind, actor, *rest = json.loads(text)
        subject = self.subjects.setdefault(actor, Subject())
        match kind:
            case "begin":
                subject.begin(rest[0])
                self._begun.setdefault(actor, deque()).append(rest[0])
            case "ack":
                subject.acknowledge()
                self.acked += 1
                op = self._begun[actor].popleft()
                if op["do"] == "erase":
                    self.erased.append(f"{op['tag']}|".encode())
            case "found":
                subject.resolve(rest[0])
                self._begun.pop(actor, None)
            case "fail":
                self.failures.append(f"{actor}: {rest[0]}")
            case "broken":
                self.broken.append(f"{actor}: {rest[0]}")
            case other:
                raise InternalError("no such line", kind=other)

    @classmethod
    def of(cls, lines: Iterable[str | bytes]) -> Belief:
        found = cls()
        for line in lines:
            found.line(line)
        return found

    @classmethod
    def read(cls, journal: Path) -> Belief:
        """What the whole journal tells; nothing where there is none yet."""
        return cls.of(journal.read_bytes().splitlines() if journal.exists() else ())

    def mismatches(self, seen: Mapping[str, State]) -> list[str]:
        """What is wrong with what was found, per actor; empty: every promise was kept."""
        return [
            f"{actor}: {difference(subject, seen.get(actor, {}))}"
            for actor, subject in sorted(self.subjects.items())
            if subject.matching(seen.get(actor, {})) is None
        ]


def difference(subject: Subject, seen: State) -> str:
    """The names that differ from the acknowledged state, shortly."""
    sure = subject.states[subject.low]
    parts = [
        f"{name} acked={_short(sure.get(name))} found={_short(seen.get(name))}"
        for name in sorted({*sure, *seen})
        if sure.get(name) != seen.get(name)
    ]
    return f"{len(subject.states) - subject.low - 1} under way; " + "; ".join(parts[:3])


def _short(item: Any) -> str:
    if item is None:
        return "absent"
    if item[0] == "segment":
        return f"[{item[1]},{item[2]}) sealed={item[3]} numbers={item[5]} hash={hash(item[4]) & 0xFFFF:04x}"
    return str(item)[-160:]
