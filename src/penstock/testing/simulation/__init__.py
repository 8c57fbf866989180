"""Deterministic simulation: one seed replays one run, byte for byte, in seconds instead of days.

``driver`` runs one seed: ``config`` draws sizes and actors, ``machine`` is the simulated node, ``faults`` break it,
and ``checker`` compares the ``history`` of clients with the promises. Long runs of one subject are in ``control``,
``retention`` and ``ledgers``. Start reading at ``driver``. Source:
docs/design/0010-simulation.md.
"""
