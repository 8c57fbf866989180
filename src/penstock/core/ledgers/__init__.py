"""Decisions about replicated ledgers, without I/O: where a ledger ends, and which bookies hold a new one.

``recovery`` decides from the answers of bookies where a ledger without a live writer ends; ``placement`` chooses
bookies. Start reading at ``recovery``. Source: docs/design/0062-log-on-bookkeeper.md.
"""
