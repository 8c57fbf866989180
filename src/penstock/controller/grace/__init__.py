"""Grace: deleted data that can still be restored, for how long, and how it is restored.

Two things can be restored: truncated bytes (``kept``, ``undo``) and deleted streams (``deleted_streams``).
``records`` and ``deleted_records`` are what the table holds of them. Start reading at ``kept``. Source:
docs/design/0012-retention-clock.md.
"""
