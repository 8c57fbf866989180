"""Decisions of a cluster as pure functions: which store owns which container.

Start reading at ``placement``. Source: docs/design/0061-coordination.md.
"""
