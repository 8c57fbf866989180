"""What several machines share, as ports with laws that ``testing.conformance`` checks.

``coordination`` is a small tree of nodes that all machines share: compare-and-set, sessions and notices. Implemented in
``storage/memory`` and ``storage/cluster``. Reasons: docs/design/0061-coordination.md. ``ledgers`` are replicated;
``nodes`` are the versioned values that their metadata need.
"""
