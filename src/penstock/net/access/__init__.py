"""The check of rights behind all doors, and the credentials that arrive at them.

``guarded`` wraps the services that the ports serve, so that every call passes the table in ``core.access.calls``.
Where no identity is needed, nothing is wrapped. Source: docs/design/0051-identity.md.
"""
