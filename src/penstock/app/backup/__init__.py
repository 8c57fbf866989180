"""Backups of a store, and stores restored from them. Source: docs/design/0023-backup.md, docs/formats/backup.md.

Start reading at ``take`` and ``restore``.
"""
