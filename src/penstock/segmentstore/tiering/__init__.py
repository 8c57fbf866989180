"""Tier 2 of a container: write appended bytes as blocks of chunks, read, lease, import and free them.

``tier_writer`` turns appends into blocks of chunks; ``blocks`` reads and verifies them, ``tail_cache`` holds the
newest bytes. ``reclaimer`` deletes what no row names, after ``leases``. ``catalogue`` repeats metadata in tier 2.
Imports the state of a container, never the container. Start reading at ``tier_writer``. Source:
docs/design/0005-segment-store.md.
"""
