"""Decisions of a cluster as pure functions: which store owns which container (``placement``), and how long
an owner may answer reads (``leases``).

Start reading at ``placement``. Source: docs/design/0061-coordination.md.
"""
