"""Tier 2: chunks in files, in a shared directory, or in an object store, and which store owns them.

``file_chunks``, ``shared_chunks`` and ``object_chunks`` implement ``ports.chunks.ChunkStorage``; ``claim`` refuses a
tier 2 that belongs to another store. Imports ``storage.machine``, ``storage.objects``, ``codec`` and ``ports``. Start
at ``file_chunks``.
"""
