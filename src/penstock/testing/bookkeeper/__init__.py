"""A BookKeeper in memory, on which the real client runs unchanged: ``bookies`` speak the wire protocol over connections
in memory, ``nodes`` keep the metadata. Both can fail as the real ones do. Start reading at ``bookies``.
"""
