"""The retention planner: the effect of one cycle on a stream, why each byte is kept, and what a policy deletes.

``planner`` is one function from ``facts`` and a time to a ``decision``. It applies ``moves`` (subscribers),
``limits`` and ``pravega_rules`` (the cut) and ``writers`` (quotas on appends). ``plan``, ``explain``, ``forecast``
and ``settlement`` answer questions with the same rules. Imports ``core.cuts``, ``core.policies``, ``core.streams``
and ``model``. Start at ``planner``.
"""
