"""Authentication of a server.

``settings`` are plain values. ``security`` is the protection of the ports, and puts the guard in front of the services.
``identities`` opens the parts that verify callers and sign tokens. ``refusal_audit`` writes refused calls into the
audit stream, and ``open_ports`` warns while nothing protects the ports. Start reading at ``security``.
"""
