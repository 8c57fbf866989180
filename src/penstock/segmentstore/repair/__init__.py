"""Damage: found by scrubs and at start, set aside, and repaired from tier 2.

``scrub`` finds damage while the store serves; ``set_aside`` keeps a damaged segment from stopping the others at a
start; ``rebuild`` makes metadata rows from tier 2. Imports ``segmentstore.tiering``, ``core`` and ``codec``. Start
reading at ``scrub``. Source: docs/design/0015-integrity.md.
"""
