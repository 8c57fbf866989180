"""Streams that scale by rate: which they are, when they are looked at, and how a decision is performed.

``scaler.py`` looks at one stream, ``loop.py`` finds the streams and the moments. The rules are in ``core.scaling``.
Start reading at ``scaler.py``. Source: docs/design/0039-scaling-by-rate.md.
"""
