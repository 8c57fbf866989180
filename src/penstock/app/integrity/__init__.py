"""Checks and repair of a stopped store's files: doctor, offline scrub, rebuild from tier 2, and the check before a start.

Source: docs/how-to/integrity.md, docs/design/0015-integrity.md. Start reading at ``doctor``.
"""
