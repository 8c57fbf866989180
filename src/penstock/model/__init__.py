"""Plain values that every room shares: names, segments, cuts, policies, errors. No I/O, no rules that need facts.

Start reading at ``names`` and ``segments``.
"""
