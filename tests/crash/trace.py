"""What a traced process did to the files of one directory, from the text that ``strace`` writes."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.model.errors import InternalError

CANNOT_TRACE = 77
"""Exit status of what needs ``strace`` where there is none, or none that may trace: skipped, neither shown nor broken."""

CALLS = (
    "openat,open,creat,write,writev,pwrite64,pwritev,pwritev2,ftruncate,truncate,fallocate,fsync,fdatasync,"
    "syncfs,sync_file_range,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat"
)
_LINE = re.compile(r"(\d+)\s+(.*)", re.DOTALL)
_CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)(.*)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_FD = re.compile(r"\d+<([^>]*)>")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_UNFINISHED = " <unfinished ...>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One system call that succeeded. ``began`` and ``ended`` are places in the trace.

    ``kind``: write (``offset``, ``data``), resize (``offset`` is the length), extend (to ``offset``), punch (``offset``,
    ``length``), sync, create, make_dir, rename (``target``), unlink, or say: a line written to the journal. One that
    failed is left out, save for ``failed-sync``, after which the kernel has forgotten what it has not written.
    """

    kind: str
    path: str
    began: int
    ended: int
    offset: int = 0
    length: int = 0
    data: bytes = b""
    target: str = ""


def strace_path() -> str | None:
    """Where ``strace`` is, if it is there and may trace."""
    found = shutil.which("strace")
    if found is None:
        return None
    tried = subprocess.run([found, "-qq", "-e", "trace=none", "true"], capture_output=True, check=False, timeout=20)
    return found if tried.returncode == 0 else None


def trace_command(strace: str, output: Path) -> list[str]:
    """What goes before a command to have it traced as ``read_trace`` wants it."""
    return [
        *(strace, "-f", "-qq", "-y", "-xx", "-s", str(1 << 25), "--seccomp-bpf"),
        *("-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(output)),
    ]


def read_trace(text: Iterator[str], root: Path, journal: Path) -> list[Event]:
    """Events below ``root`` and lines said to ``journal``, in the order in which they ended.

    Raises InternalError for a call that changes files in a way that is not understood: it would be overlooked.
    """
    reader = _Reader(str(root), str(journal))
    for number, line in enumerate(text):
        reader.line(number, line)
    return reader.events


class _Reader:
    def __init__(self, root: str, journal: str) -> None:
        self._root = root
        self._journal = journal
        self._unfinished: dict[str, tuple[int, str]] = {}
        self._known: set[str] = {root}
        self.events: list[Event] = []

    def line(self, number: int, line: str) -> None:
        matched = _LINE.match(line)
        if matched is None:
            return
        process, rest = matched[1], matched[2].rstrip("\n")
        began = number
        if rest.endswith(_UNFINISHED):
            self._unfinished[process] = (number, rest.removesuffix(_UNFINISHED))
            return
        resumed = _RESUMED.match(rest)
        if resumed is not None:
            began, head = self._unfinished.pop(process, (number, ""))
            rest = head + resumed[2]
        call = _CALL.match(rest)
        if call is None:
            return
        if int(call[3]) < 0:
            path = self._path_of(call[2])
            if path is not None and self._ours(path) and call[1] in ("fsync", "fdatasync", "syncfs"):
                for synced in self._files() if call[1] == "syncfs" else [path]:
                    self._add("failed-sync", synced, began, number)
            return
        self._call(call[1], call[2], int(call[3]), call[4], began, number)

    def _call(self, name: str, args: str, result: int, tail: str, began: int, ended: int) -> None:
        if name in ("openat", "open", "creat"):
            self._opened(args, tail, began, ended)
            return
        if name in ("rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"):
            self._named(name, args, began, ended)
            return
        path = self._path_of(args)
        if path is None:
            return
        if path == self._journal:
            self._add("say", path, began, ended, data=_strings(args)[:result])
            return
        if name == "syncfs" and self._ours(path):
            for synced in (*self._files(), *self._directories()):
                self._add("sync", synced, began, ended)
            return
        # A file that was removed meanwhile, and SQLite's shared memory, which is made anew: nobody reads them again.
        if not self._ours(path) or path.endswith((" (deleted)", "-shm")):
            return
        self._changed(name, args, path, result, began, ended)

    def _changed(self, name: str, args: str, path: str, result: int, began: int, ended: int) -> None:
        numbers = args.rsplit(", ", 2)
        match name:
            case "pwrite64" | "pwritev":
                data = _strings(args)[:result]
                self._add("write", path, began, ended, offset=int(numbers[-1]), data=data)
            case "pwritev2":
                self._add("write", path, began, ended, offset=int(numbers[-2]), data=_strings(args)[:result])
            case "write" if path.endswith("/LOCK"):
                self._add("write", path, began, ended, data=_strings(args)[:result])
            case "ftruncate":
                self._add("resize", path, began, ended, offset=int(numbers[-1]))
            case "fallocate" if "PUNCH_HOLE" in args:
                self._add("punch", path, began, ended, offset=int(numbers[-2]), length=int(numbers[-1]))
            case "fallocate":
                self._add("extend", path, began, ended, offset=int(numbers[-2]) + int(numbers[-1]))
            case "fsync" | "fdatasync":
                self._add("sync", path, began, ended)
            case _:
                raise InternalError("call on a file is not understood", call=name, path=path)

    def _opened(self, args: str, tail: str, began: int, ended: int) -> None:
        found = _FD.match(f"0{tail[tail.find('<') :]}") if "<" in tail else None
        path = _plain(found[1]) if found else ""
        if not self._ours(path) or path.endswith("-shm"):
            return
        if "O_CREAT" in args and path not in self._known:
            self._known.add(path)
            self._add("create", path, began, ended)
        if "O_TRUNC" in args:
            self._add("resize", path, began, ended, offset=0)

    def _named(self, name: str, args: str, began: int, ended: int) -> None:
        paths = [_decoded(text) for text, _ in _STRING.findall(args)]
        names = [path.decode() for path in paths]
        if not names or not self._ours(names[0]) or names[0].endswith("-shm"):
            return
        if name.startswith("mkdir"):
            self._add("make_dir", names[0], began, ended)
        elif name.startswith("unlink"):
            self._known.discard(names[0])
            self._add("unlink", names[0], began, ended)
        elif name.startswith("rename"):
            self._known.discard(names[0])
            self._known.add(names[1])
            self._add("rename", names[0], began, ended, target=names[1])
        else:
            raise InternalError("call on a name is not understood", call=name, path=names[0])

    def _files(self) -> list[str]:
        """All files that there are now."""
        return sorted(self._known - {self._root})

    def _directories(self) -> list[str]:
        return sorted({self._root} | {path.rpartition("/")[0] for path in self._files()})

    def _ours(self, path: str) -> bool:
        return path == self._root or path.startswith(f"{self._root}/")

    def _path_of(self, args: str) -> str | None:
        found = _FD.match(args)
        return None if found is None else _plain(found[1])

    def _add(
        self,
        kind: str,
        path: str,
        began: int,
        ended: int,
        *,
        offset: int = 0,
        length: int = 0,
        data: bytes = b"",
        target: str = "",
    ) -> None:
        self.events.append(
            Event(
                kind=kind,
                path=path,
                began=began,
                ended=ended,
                offset=offset,
                length=length,
                data=data,
                target=target,
            )
        )


def _plain(text: str) -> str:
    return _decoded(text).decode() if "\\x" in text else text


def _decoded(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _strings(args: str) -> bytes:
    found: Sequence[tuple[str, str]] = _STRING.findall(args)
    if any(cut for _, cut in found):
        raise InternalError("trace has left bytes out")
    return b"".join(_decoded(text) for text, _ in found)
