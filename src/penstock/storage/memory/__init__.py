"""All storage in memory: for simulation, tests, and temporary stores.

Implements ``ChunkStorage``, ``KeyValueStore``, ``DurableLog`` and ``Objects``. The suites of ``testing.conformance``
hold them to the same laws as the durable ones. Imports ``ports``, ``model`` and ``storage.chunks``.
"""
