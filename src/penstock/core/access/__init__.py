"""Who may do what: names of resources, rights on them, and the table of all calls with the rights that each needs.

Start reading at ``calls``, which is the table. ``resources`` derives Pravega's names of resources, and ``rights``
decides. Nothing here knows how an identity was verified. Source: docs/design/0051-identity.md.
"""
