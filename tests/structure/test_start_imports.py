"""What a server imports until it serves: each module takes half a millisecond of CPU, and all of them two thirds of a start.

A newcomer fails with its name and the chain of modules that import it. If a start needs it, add it below; otherwise import
it in the function that uses it, but not where the event loop would wait for a hundred milliseconds of imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGES = {
    *("anyio", "click", "h11", "starlette", "typing_extensions", "uvicorn"),  # HTTP
    *("google", "grpc", "grpc_tools"),  # grpc imports its tools if they are installed
    *("annotated_doc", "shellingham", "typer"),
    *("crc32c", "msgspec", "uvloop"),
}
FOLDERS = {
    "": "app client codec controller core model net ports segmentstore storage",
    "app": "access cli erasure integrity metrics replicated workers",
    "app.cli": "common upkeep",
    "codec": "control store wire",
    "controller": "erasure evidence grace groups protection retention scaling streams tables transactions watermarks",
    "core": "access cases cluster cuts evidence planner_json policies retention scaling segments streams",
    "model": "answers traces values",
    "net": "access dial grpc http native proto tls traces wire",
    "net.http": "pulsar",
    "ports": "access cluster control data",
    "segmentstore": "calls durability erasure repair tiering",
    "storage": "access chunks log machine objects rows",
}
LATE = {
    "penstock.app.workers.supervisor": "only --workers needs it",
    "penstock.app.access.identities": "only --auth needs it, with what checks passwords and tokens",
    "penstock.net.http.description": "made when somebody opens the documentation",
    "tomllib": "only --auth-config reads it",
    "urllib.request": "only identity providers need it",
}
"""Modules of folders and libraries that a start has, which it does not need."""

PROGRAM = """
import json, os, sys

class Chains:
    def __init__(self):
        self.found = {}
    def find_spec(self, name, path=None, target=None):
        chain, frame = [], sys._getframe(1)
        while frame is not None:
            importer = frame.f_globals.get("__name__", "")
            if not importer.startswith("importlib") and importer not in chain:
                chain.append(importer)
            frame = frame.f_back
        self.found.setdefault(name, chain[::-1])

chains = Chains()
sys.meta_path.insert(0, chains)

def ready(_facts):
    print(json.dumps({name: chain for name, chain in chains.found.items() if name in sys.modules}), flush=True)
    os._exit(0)

from penstock.__main__ import main
import penstock.app.cli.upkeep.servers as servers
servers._ready_json = ready
ports = [word for name in ("controller", "store", "http") for word in ("--" + name + "-port", "0")]
sys.argv = ["penstock", "standalone", "--json", "--data", sys.argv[1], *ports]
main()
"""


@cache
def imported() -> dict[str, list[str]]:
    """By module that a start imports: the modules that import it, from the outermost."""
    with TemporaryDirectory() as place:
        words = [sys.executable, "-c", PROGRAM, str(Path(place) / "data")]
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def described(name: str, chain: list[str]) -> str:
    return f"{name}, imported by {' > '.join(chain)}"


def test_a_start_imports_no_other_packages() -> None:
    others = {
        name.partition(".")[0]: described(name, chain)
        for name, chain in reversed(imported().items())
        if name.partition(".")[0] not in sys.stdlib_module_names | PACKAGES | {"penstock"}
    }
    assert others == {}


def test_a_start_imports_no_other_folders_of_ours() -> None:
    known = {f"penstock.{room}.{name}".replace("..", ".") for room, names in FOLDERS.items() for name in names.split()}
    root = Path(__file__).parents[2] / "src"
    found = {name for name in imported() if name.startswith("penstock.") and root.joinpath(*name.split(".")).is_dir()}
    assert [described(name, imported()[name]) for name in sorted(found - known)] == []
    assert known - found == set(), "a start no longer imports them: they leave the list"


def test_what_a_start_does_not_need_is_imported_late() -> None:
    assert [described(name, imported()[name]) for name in sorted(LATE.keys() & imported().keys())] == []
    assert len(imported()) > 800
