"""The address of a cluster: the servers of ZooKeeper, and the cluster's root there."""

from __future__ import annotations

import re
from typing import Final

from penstock.model.errors import InvalidArgumentError
from penstock.model.urls import url_parts
from penstock.model.values.dataclass import dataclass
from penstock.ports.cluster.coordination import check_path

SCHEME: Final = "zk"
_HOSTS: Final = re.compile(r"[^\s,/@]+:\d+(,[^\s,/@]+:\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddress:
    """``hosts``: ``HOST:PORT`` of ZooKeeper's servers, separated by commas. ``root``: an absolute path, such as
    ``/penstock/flights``."""

    hosts: str
    root: str

    def __str__(self) -> str:
        return f"{SCHEME}://{self.hosts}{self.root}"


def parse_cluster_address(text: str) -> ClusterAddress:
    """The parts of ``zk://HOST:PORT[,HOST:PORT]/ROOT``. Raises InvalidArgumentError."""
    parts = url_parts(text)
    root = parts.path.rstrip("/")
    if parts.scheme != SCHEME or not _HOSTS.fullmatch(parts.netloc) or not root or parts.query or parts.fragment:
        raise InvalidArgumentError(
            "not the address of a cluster; write zk://ZOOKEEPER:PORT/ROOT, such as zk://zk1:2181,zk2:2181/penstock/flights",
            given=text,
        )
    check_path(root[1:])
    return ClusterAddress(hosts=parts.netloc, root=root)
