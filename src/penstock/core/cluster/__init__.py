"""Decisions of a cluster as pure functions: which store owns which container (``placement``), what an owner does to the
record of its container (``ownership``), and how long it may answer reads (``leases``).

Start reading at ``placement``. Source: docs/design/0061-coordination.md, docs/design/0063-ownership.md.
"""
