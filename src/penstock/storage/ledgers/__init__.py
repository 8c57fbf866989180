"""Replicated ledgers on Apache BookKeeper: our own client of its wire protocol 2.

``bookkeeper`` implements ``ports.cluster.ledgers.Ledgers``. ``connections`` speaks to bookies, ``writer`` adds entries,
``takeover`` closes the ledger of a dead writer, ``metadata`` has what ZooKeeper keeps. ``ledger_log`` implements
``ports.durable_log``; ``log_record``, ``removals`` and ``publications`` belong to it. All of it takes a
``ports.cluster.nodes.Nodes``, such as that of ``storage.cluster``. Start reading at ``bookkeeper``. Source:
docs/design/0062-log-on-bookkeeper.md.
"""
