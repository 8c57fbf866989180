"""Retention of streams: policies, holds, the planner's facts, and the loop that performs its decisions.

A cycle of a stream goes through ``loop`` (which streams, when), ``cycle``, ``facts`` (gathered for the planner), the
planner itself (``core.retention.planner``) and ``steps`` (the decision, in durable batches). ``policies`` and
``holds`` answer users; ``answers``, ``forecast`` and ``reclaim`` explain. Start reading at ``cycle``. Source:
docs/design/0007-retention.md.
"""
