"""Bytes and documents without I/O: what lies in files, in the store's tables and on the wire, encoded and decoded.

Knows ``model`` only. Start reading at ``events``, the form of an event inside a segment; docs/formats/ describes the rest.
"""
