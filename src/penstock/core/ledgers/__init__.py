"""Decisions about replicated ledgers, without I/O: where a ledger ends, and which bookies hold a new one.

``recovery`` judges what bookies answer about a ledger whose writer is gone; ``placement`` chooses bookies. Start reading
at ``recovery``. Source: docs/design/0062-log-on-bookkeeper.md.
"""
