"""A command of ``penstock cluster`` that is refused has changed nothing: no node, no object of tier 2, no file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import cluster_engines
import pytest
from kazoo.client import KazooClient

from penstock.app.cli.cluster.cluster import app
from penstock.codec.store.cluster_nodes import STORES, StoreEntry, encode_node

pytestmark = pytest.mark.cluster

NEVER_REFUSED = {"status": "reads only", "undrain": "a store that is not drained is no error"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """``words``: the command, in which ``{…}`` are places. ``files``: what is written first. ``is_running``: a store is
    registered meanwhile."""

    words: str
    message: str
    files: Mapping[str, str] = field(default_factory=dict)
    is_running: bool = False


CLUSTER = "--cluster {url}"
FOREIGN = {"wrong.secret": "ab" * 32}
REFUSALS = {
    "init, tier 2 of another cluster": Refusal(
        "init --cluster {new} --tier2 {tier2} --bookkeeper-root {ledgers} --secret-file {path}/new.secret",
        "another cluster",
    ),
    "init, tier 2 of a store": Refusal(
        "init --cluster {new} --tier2 {path}/tier --bookkeeper-root {ledgers} --secret-file {path}/new.secret",
        "another store",
        {"tier/STORE": '{"format": 1, "store": "theirs"}'},
    ),
    "init, no directory": Refusal(
        "init --cluster {new} --tier2 {path}/nothing --bookkeeper-root {ledgers} --secret-file {path}/new.secret",
        "nothing",
    ),
    "init, no BookKeeper": Refusal(
        "init --cluster {new} --tier2 {path}/tier --bookkeeper-root /nothing --secret-file {path}/new.secret",
        "BookKeeper",
    ),
    "init, other settings": Refusal(
        "init --cluster {url} --tier2 {tier2} --bookkeeper-root {ledgers} --containers 7 --secret-file {secret}",
        "other settings",
    ),
    "init, no secret": Refusal(
        "init --cluster {url} --tier2 {tier2} --bookkeeper-root {ledgers} --containers 2 --secret-file {path}/new.secret",
        "copy it from the machine",
    ),
    "init, another secret": Refusal(
        "init --cluster {url} --tier2 {tier2} --bookkeeper-root {ledgers} --containers 2 --secret-file {path}/wrong.secret",
        "not that of the cluster",
        FOREIGN,
    ),
    "drain": Refusal(f"drain nobody {CLUSTER}", "no store of this name"),
    "move, no store": Refusal(f"move 0 nobody {CLUSTER}", "no store of this name"),
    "move, no container": Refusal(f"move 7 nobody {CLUSTER}", "no such container"),
    "unpin": Refusal(f"unpin 7 {CLUSTER}", "no such container"),
    "disable": Refusal(f"disable 7 --reason x --yes {CLUSTER}", "no such container"),
    "enable": Refusal(f"enable 7 {CLUSTER}", "no such container"),
    "secret record": Refusal(
        f"secret record {CLUSTER} --secret-file {{path}}/wrong.secret", "does not have the secret", FOREIGN
    ),
    "secret change": Refusal(
        f"secret change {CLUSTER} --secret-file {{path}}/wrong.secret", "does not have the secret", FOREIGN
    ),
    "secret finish": Refusal(
        f"secret finish {CLUSTER} --secret-file {{path}}/wrong.secret", "does not have the secrets", FOREIGN
    ),
    "doctor, no mark": Refusal(
        "doctor --rebuild --cluster {new} --tier2 {path}/tier --bookkeeper-root {ledgers} --yes", "no mark of a cluster"
    ),
    "doctor, a process runs": Refusal(
        "doctor --rebuild --cluster {url} --tier2 {tier2} --bookkeeper-root {ledgers} --yes",
        "are running",
        is_running=True,
    ),
    "doctor, a loss": Refusal(
        "doctor --rebuild --cluster {beside} --tier2 {path}/lost --bookkeeper-root {ledgers} --yes",
        "nothing was changed",
        {
            "lost/clusters/theirs": '{"format": 1, "cluster": "theirs", "containers": 1}',
            "lost/container-0/STORE": '{"format": 1, "store": "theirs"}',
            "lost/container-0/chunks/a": "x",
        },
    ),
    "upgrade": Refusal(f"upgrade {CLUSTER}", "newer", {"features": '{"format": 99}'}),
}


class Place:
    """A cluster that was created, and all that a command could change."""

    def __init__(self, path: Path, client: KazooClient, address: str, ledgers: str) -> None:
        self.client = client
        self.path = path
        self.root = f"/refused-{path.name}"
        self.places = {
            "url": f"zk://{address}{self.root}/cluster",
            "new": f"zk://{address}{self.root}/other/new",
            "beside": f"zk://{address}{self.root}/beside",
            "tier2": str(path / "tier2"),
            "secret": str(path / "secret"),
            "path": str(path),
            "ledgers": ledgers,
        }
        for name in ("tier2", "tier"):
            (path / name).mkdir()
        done = self.run(
            "init --cluster {url} --tier2 {tier2} --bookkeeper-root {ledgers} --containers 2 --secret-file {secret}"
        )
        assert done.returncode == 0, done.stderr

    def run(self, words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock", "cluster", *words.format(**self.places).split()],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def everything(self) -> tuple[Mapping[str, bytes], Mapping[str, bytes]]:
        """All nodes except those of sessions, and all files except locks."""
        nodes, names = {}, [self.root]
        while names:
            name = names.pop()
            data, _ = self.client.get(name)
            nodes[name] = data
            if not name.endswith("/_sessions"):
                names += [f"{name}/{one}" for one in self.client.get_children(name)]
        files = {
            str(file): file.read_bytes()
            for file in self.path.rglob("*")
            if file.is_file() and not file.name.endswith(".lock")
        }
        return nodes, files


@pytest.fixture
def place(
    zookeeper: cluster_engines.ZooKeeper, empty_bookies: cluster_engines.Bookies, tmp_path: Path
) -> Iterator[Place]:
    client = KazooClient(zookeeper.address)
    client.start()
    found = Place(tmp_path, client, zookeeper.address, empty_bookies.root)
    yield found
    client.delete(found.root, recursive=True)
    client.stop()
    client.close()


def test_every_command_is_looked_at() -> None:
    names = {one.name or one.callback.__name__ for one in app.registered_commands if one.callback is not None}
    assert names == {name.split(",")[0] for name in REFUSALS if not name.startswith("secret")} | NEVER_REFUSED.keys()


def test_a_refused_command_has_changed_nothing(place: Place) -> None:
    wrong = []
    for name, one in REFUSALS.items():
        for file, text in one.files.items():
            if file == "features":
                place.client.set(f"{place.root}/cluster/features", text.encode())
                continue
            (place.path / file).parent.mkdir(parents=True, exist_ok=True)
            (place.path / file).write_text(text)
            (place.path / file).chmod(0o600)
        entry = f"{place.root}/cluster/{STORES}/s1"
        if one.is_running:
            node = encode_node(StoreEntry(store="s1", clients="a:1", links="a:2", pid=1))
            place.client.create(entry, node, ephemeral=True)
        before = place.everything()
        done = place.run(one.words)
        said = done.stdout + done.stderr
        if done.returncode in (0, 1) or one.message not in said or "Traceback" in said:
            wrong.append(f"{name}: exit status {done.returncode}: {said}")
        for there, now in zip(before, place.everything(), strict=True):
            changed = sorted({*there.items()} ^ {*now.items()})
            if changed:
                wrong.append(f"{name}: changed {changed}")
        if one.is_running:
            place.client.delete(entry)
        if "tier/STORE" in one.files:
            (place.path / "tier/STORE").unlink()
    assert wrong == []
