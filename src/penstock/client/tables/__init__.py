"""Key-value tables: entries with versions, conditional changes, scans in key order; the layout is Pravega's.

``table`` has the calls; start reading there. ``entries`` has the values that users give and get, and their checks, as
pure functions. ``scan`` merges the partitions. Imports ``core`` and ``ports``; knows no server.
"""
