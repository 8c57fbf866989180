"""Who may do what in a cluster.

``secret`` reads the secret that all processes have, and ``keys`` derives others from it. ``shared_files`` gives all
controllers the same users and tokens, and ``signing_keys`` the same keys of the audit log: encrypted, by ``sealed``, as
objects in tier 2. Source: docs/design/0065-cluster.md, "Users and tokens" and "Keys".
"""
