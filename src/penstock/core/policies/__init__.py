"""Policies: what applies to a stream from all levels, one sentence that describes it, and which holds are legal. Pure.

``levels`` resolves a policy, ``audit_policy`` limits that of the audit stream, ``hold_rules`` checks holds.
"""
