"""Cases: the erasure of a person's data, from the request to the proof. Rules without I/O.

``matching`` decides which events are about the person, ``case`` what happens to a case next, ``ledger`` what a store
that was restored from an older copy must erase again. Start reading at ``case``.
Source: docs/design/0056-erasure-cases.md.
"""
