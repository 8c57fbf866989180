"""The control plane: scopes, streams, transactions, reader groups, retention and erasure, on top of any segment service.

Decisions come from ``core``; this package gathers the facts, writes each decision in one durable step, and performs it.
A crash in between loses nothing. Start reading at ``controller``, then ``streams.lifecycle``. Source:
docs/design/0006-controller.md.
"""
