"""Rules about segments and their bytes: appends, memory, chunks, garbage, erasure. Pure.

Each module is one rule and independent of most others; the segment store and the servers call them. ``append_rules``
decides appends, ``rolling`` the blocks and chunks of tier 2, ``garbage`` which chunks may be deleted, ``erasure``
which bytes are blanked. Start reading at ``append_rules``.
"""
