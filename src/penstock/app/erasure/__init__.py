"""Erasure around the store: files in a data directory, and lists that people write.

``values`` reads lists of values and positions and searches files for values. ``key`` has the key of digests,
``ledger`` the files of ledgers and what a start does with one, and ``subjects`` the export of a person's events.
"""
