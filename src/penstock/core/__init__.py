"""Rules without I/O: every decision of the store as a function of plain values. Time and randomness are arguments.

Start reading at ``retention.planner``.
"""
