"""The engines of a cluster: ZooKeeper, by ``kazoo``. Importing this without the extra ``cluster`` raises
MissingExtraError.

``zookeeper`` implements ``ports.cluster.coordination``; ``namespace`` creates and checks a cluster's root; ``nodes``
implements ``ports.cluster.nodes`` for ledgers. ``kazoo_line`` brings kazoo's threads to the event loop, for all of them.
Start reading at ``zookeeper``.
"""

from penstock.model.errors import missing_extra

try:
    import kazoo  # noqa: F401
except ImportError as error:
    raise missing_extra("kazoo", "cluster") from error
