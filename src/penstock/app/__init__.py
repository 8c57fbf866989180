"""Puts the rooms together: an embedded store, a server with or without workers, the command line.

The only package that imports all others below it. Start reading at ``standalone`` and ``embedded``.
"""
