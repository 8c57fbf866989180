"""The control plane: scopes, streams, transactions, reader groups, retention and erasure, on top of any segment service.

Decisions come from ``core``; this room gathers the facts, writes each decision in one durable step, and performs it from
wherever it stands. Start reading at ``controller``, then ``streams.lifecycle``. Source: docs/design/0006-controller.md.
"""
