"""What an operator does about a node of a cluster that is damaged. Source: docs/how-to/cluster.md, "Damaged nodes"."""

from __future__ import annotations

from typing import Final

from penstock.codec.store.cluster_nodes import (
    ACCESS,
    ASSIGNMENT,
    CONFIG,
    CONTAINERS,
    CONTROLLERS,
    FAILED,
    FEATURES,
    HOLDERS,
    INCARNATIONS,
    LEADER,
    REQUESTS,
    SECRET,
    STORES,
    TERM,
)

_BY_NODE: Final = {
    CONFIG: "stop all stores and controllers, and run `penstock cluster doctor --rebuild`; processes need it when they start",
    FEATURES: "run `penstock cluster upgrade`, which writes it again",
    REQUESTS: 'write {"format": 1} to it, and then repeat what was drained, pinned or disabled',
    ASSIGNMENT: 'write {"format": 1} to it; a controller then assigns all containers again',
    TERM: 'write {"format": 1, "controller": "", "term": N} to it, with an N above every term in the logs of controllers',
    LEADER: "restart the controllers; delete it if it stays",
    ACCESS: "delete it; then change a user on the controller whose files are right, which publishes them again",
    SECRET: "delete it; then run `penstock cluster secret record` with the file that the processes use",
}
_BELOW: Final = {
    STORES: "restart the store of this name; delete the node if it stays",
    CONTROLLERS: "restart the controller of this name; delete the node if it stays",
    HOLDERS: "restart the store that serves this container; delete the node if it stays",
    FAILED: "delete it",
    INCARNATIONS: "leave it alone: processes that were started with an earlier one end by themselves",
    CONTAINERS: "stop all stores and controllers, and run `penstock cluster doctor --rebuild`; never create an empty one",
}


def remedy(path: str) -> str:
    """What to do about the node at this path, relative to the root of the cluster."""
    folder, _, name = path.partition("/")
    if name:
        return _BELOW.get(folder, "delete it")
    return _BY_NODE.get(path, "create an empty node at this path")  # a folder of nodes
