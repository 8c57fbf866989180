"""Who calls and what may be done: credentials that become identities, and tokens for the data path.

``authenticator`` verifies what a caller presents at a door. ``tokens`` are issued by the controller and verified by
segment stores, so that the data path asks nobody. Source: docs/design/0051-identity.md.
"""
