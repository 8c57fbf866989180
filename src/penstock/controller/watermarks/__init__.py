"""Watermarks from the times that writers note, in the form and place in which Pravega's clients read them.

Start with ``watermarks.py``, the calls. ``advancing.py`` computes and appends, ``mark_segment.py`` reads and truncates,
``due.py`` remembers which streams to look at. The rules are in ``core/streams/watermarks.py``.
"""
