"""Replicated ledgers on Apache BookKeeper: our own client of its wire protocol 2.

``bookkeeper`` implements ``ports.cluster.ledgers.Ledgers``. ``connections`` speaks to bookies, ``writer`` adds entries,
``takeover`` ends the ledger of a writer that is gone, ``metadata`` has what ZooKeeper keeps. ``zookeeper`` is the only
module that knows kazoo. Start reading at ``bookkeeper``. Source: docs/design/0062-log-on-bookkeeper.md.
"""
