"""Key-value tables of users: each is a record and a set of sorted table segments.

The entries are none of the controller's business: clients read and change them through the segment store.
Start reading at ``key_value_tables``.
"""
