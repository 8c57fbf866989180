"""Policies: what applies to a stream from all levels, and which changes are legal. Pure.

``levels.py`` resolves the documents of stream, scope and server; ``locks.py`` refuses changes that a retention lock
forbids; ``audit_policy.py`` limits the policy of the audit stream; ``hold_rules.py`` checks holds; ``sentence.py``
describes a policy in one sentence. Start reading at ``levels.py``.
"""
