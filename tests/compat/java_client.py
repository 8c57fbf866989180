"""The official Java client in a process of its own, for tests that tell it what to do. Sources: ``java/``."""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.server import ServerProcess

PROJECT = Path(__file__).with_name("java")
CACHE = Path(__file__).parents[2] / ".cache"
BUILD = CACHE / "java-compat"
PATIENCE_S = 150

Steps = Callable[[Mapping[str, Any]], str]


def build() -> str:
    """The class path of the client and the scenarios, built anew when a source of theirs has changed.

    Skips the test that asks where there is no JDK or Maven.
    """
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"the Java client needs a JDK and Maven: there is no {tool}")
    sources = sorted(path for path in PROJECT.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    built = BUILD / "built"
    if not built.exists() or built.read_text() != digest:
        shutil.rmtree(BUILD, ignore_errors=True)
        project, repository = str(PROJECT / "pom.xml"), f"-Dmaven.repo.local={CACHE / 'm2'}"
        command = ["mvn", "-q", "-B", "-ntp", repository, f"-Dcompat.build={BUILD}", "-f", project]
        done = subprocess.run(
            [*command, "compile", "dependency:copy-dependencies"],
            capture_output=True,
            text=True,
            timeout=1200,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        built.write_text(digest)
    return f"{BUILD / 'classes'}:{BUILD / 'jars' / '*'}"


class JavaClient:
    """One Java process that runs scenarios after each other. A scenario that hangs ends it; the next one starts another."""

    def __init__(
        self,
        classpath: str,
        server: ServerProcess,
        log: Path,
        trust: Path | None = None,
        *,
        credentials: tuple[str, str] | None = None,
    ) -> None:
        """``trust``: authorities of a server with TLS, whose certificate has the name localhost. ``credentials``: a user
        and the password that all users have."""
        self.server = server
        names = ("COMPAT_USER", "COMPAT_PASSWORD")
        self._environment = os.environ | dict(zip(names, credentials or (), strict=False))
        self._log = log
        self._command = [
            *("java", "-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classpath),
            *(() if trust is None else (f"-Dcompat.trust={trust}",)),
            *("penstock.compat.Main", server.address if trust is None else f"localhost:{server.controller_port}"),
        ]
        self._process: subprocess.Popen[str] | None = None

    def run(self, scenario: str, steps: Steps | None = None, *, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """What the scenario saw. ``steps`` answers its lines in between."""
        if self._process is None:
            with self._log.open("ab") as errors:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=self._environment,
                )
        deadline = time.monotonic() + patience_s
        line = self._ask(scenario, deadline)
        while "step" in line:
            assert steps is not None, line
            line = self._ask(steps(line), deadline)
        assert "error" not in line, f"{line['error']}\n--- before\n{line['before']}\n--- server\n{self.server.tail()}"
        seen: dict[str, Any] = line["seen"]
        return seen

    def _ask(self, words: str, deadline: float) -> Mapping[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(words + "\n")
        process.stdin.flush()
        # One line answers one line: none is ever left over in a buffer that select does not see.
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        text = process.stdout.readline() if ready else ""
        if not text:
            self.close()
            pytest.fail(f"no answer to {words!r}\n--- client\n{self._tail()}\n--- server\n{self.server.tail()}")
        answer: Mapping[str, Any] = json.loads(text)
        return answer

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])

    def close(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
