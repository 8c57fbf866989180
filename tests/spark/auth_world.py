"""A server with TLS and identities for tests of Spark: its users, and the environment of one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock
from penstock.core.access.resources import parse_grant
from penstock.model.credentials import Credentials
from penstock.storage.access.passwords import hash_password
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.testing.server import ServerProcess
from tests.certificates import Authority

PASSWORD = "hunter2-is-no-password"
RIGHTS = {
    "root": ("/=*",),
    # A sink creates its stream, and a subscriber is a reader group.
    "etl": ("/scope:plant=read,write,admin",),
    "rob": ("/scope:plant=read",),
}
SCRIPT = Path(__file__).with_name("auth_session.py")


@dataclass(frozen=True)
class AuthServer:
    server: ServerProcess
    path: Path

    @property
    def address(self) -> str:
        return f"tls://{self.server.address}"

    @property
    def authority(self) -> Path:
        return self.path / "ca.pem"

    def environment(self, user: str, password: str = PASSWORD) -> dict[str, str]:
        """The variables of a driver that connects as the user."""
        file = self.path / f"{user}-{len(password)}.password"
        file.write_text(password)
        return {
            "PENSTOCK_TLS_CA": str(self.authority),
            "PENSTOCK_USER": user,
            "PENSTOCK_PASSWORD_FILE": str(file),
        }

    def store(self, user: str = "root") -> penstock.Store:
        return penstock.connect(self.address, tls_ca=self.authority, credentials=Credentials.basic(user, PASSWORD))

    def change(self, user: str, *grants: str) -> None:
        """Give the user these rights, and no others; none: remove the user."""

        def change(users: dict[str, User]) -> None:
            users.pop(user, None)
            if grants:
                users[user] = User(name=user, password=hash_password(PASSWORD), grants=tuple(map(parse_grant, grants)))

        change_users(users_path(self.server.data), change)


@contextmanager
def auth_server(path: Path, *options: str) -> Iterator[AuthServer]:
    """A server with ``RIGHTS`` and the scope ``plant``, on loopback."""
    authority, digest = Authority(), hash_password(PASSWORD)
    authority.write(path / "ca.pem")

    def add(users: dict[str, User]) -> None:
        for name, rights in RIGHTS.items():
            users[name] = User(name=name, password=digest, grants=tuple(map(parse_grant, rights)))

    change_users(users_path(path / "data"), add)
    files = authority.issue(path, hosts=("localhost", "127.0.0.1"))
    with ServerProcess(path / "data", *files.options(), "--auth", *options) as running:
        found = AuthServer(running, path)
        with found.store() as store:
            store.create_scope("plant")
        yield found


def without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without anything of Penstock's or Pravega's clients."""
    return {name: value for name, value in environment.items() if not name.lower().startswith(("penstock", "pravega"))}


def run_session(
    server: AuthServer, work: Path, name: str, master: str = "local[2]", **environment: str
) -> dict[str, Any]:
    """What ``auth_session.py`` prints, with credentials in the environment of its driver. Its streams begin with the
    name."""
    conf: dict[str, str] = {}
    if "PATH" in environment:
        conf["spark.executorEnv.PATH"] = environment["PATH"]
        environment["PATH"] = environment.pop("DRIVER_PATH")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(work), server.address, name, master, json.dumps(conf)],
        capture_output=True,
        text=True,
        timeout=570,
        env=without_credentials(os.environ) | server.environment("etl") | environment,
        check=False,
    )
    (work / "stderr").write_text(done.stderr)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


EXECUTOR = """#!/bin/sh
touch {used}
unset PENSTOCK_USER PENSTOCK_PASSWORD_FILE
exec {python} "$@"
"""


def cluster_environment(work: Path) -> dict[str, str]:
    """For a driver whose executors are processes of their own, without credentials. Python in their ``PATH`` is a script
    that drops them, and leaves the file ``executor-python``."""
    import pyspark

    home, scripts = work / "spark", work / "bin"
    for directory in (home, scripts):
        directory.mkdir()
    for item in Path(pyspark.__file__).parent.iterdir():
        if item.name != "work":
            (home / item.name).symlink_to(item)
    python = scripts / "python3"
    python.write_text(EXECUTOR.format(used=work / "executor-python", python=sys.executable))
    python.chmod(0o755)
    driver = work / "driver-bin"
    driver.mkdir()
    (driver / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (driver / "python3").chmod(0o755)
    return {
        "PYSPARK_PYTHON": "python3",
        "PYSPARK_DRIVER_PYTHON": "python3",
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{scripts}:/usr/bin:/bin",
        "DRIVER_PATH": f"{driver}:{os.environ['PATH']}",
    }
