"""Streams and scopes: create, change, scale, seal, truncate, delete and describe them.

A change goes through ``updates`` (the call), ``workflows`` (finish what is under way, then record the intent), and
the module that performs it: ``lifecycle``, ``epochs``, ``truncation`` or ``idle``. ``queries`` only reads. The rules
are in ``core.streams`` and ``core.cuts``. Start reading at ``workflows``. Source: docs/design/0006-controller.md.
"""
