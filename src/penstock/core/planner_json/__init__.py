"""The planner's JSON: one line of facts in, one decision out, for the command line and for fleets. Needs no store.

``requests`` reads one line of facts and ``answers`` writes one decision; ``lines`` does the same in bulk. Imports
``core.retention``, ``core.policies``, ``core.cuts``, ``core.streams``, ``codec`` and ``model``. Start reading at
``requests``. Source: docs/formats/planner.md.
"""
