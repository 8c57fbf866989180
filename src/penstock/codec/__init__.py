"""Encodes and decodes everything in files, in the store's tables and on the wire, without I/O.

Imports ``model`` only. Start reading at ``events``, the form of an event inside a segment; docs/formats/ describes the
rest. ``bookie`` and ``ledger_metadata`` have the bytes of BookKeeper, which others define.
"""
