"""Tier 1 on local files: a fenced log of frames, in files that are zeroed once and then recycled.

``local_log`` implements ``ports.durable_log.DurableLog``: appends wait in ``queue``, files come from ``pool``,
``epoch`` fences earlier openings. ``scan`` and ``tail`` read the files at an opening. Imports ``codec.store`` and
``ports``; files and threads are arguments. Start reading at ``local_log``. Source: docs/design/0004-log.md.
"""
