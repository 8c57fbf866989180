"""Pravega's segment-store protocol: bytes to commands and back, without I/O.

A command is a value (``commands``, ``table_commands``) with a layout of one letter per field (``layout``); ``frames``
turns bytes into commands and back. Imports ``model`` only. Start reading at ``frames``.
"""
