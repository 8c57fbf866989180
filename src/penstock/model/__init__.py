"""Plain values that all packages share: names, segments, cuts, policies, errors. No I/O, no rules that need facts.

Start reading at ``names`` and ``segments``.
"""
