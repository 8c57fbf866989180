"""TLS of the servers.

``certificates`` reads and judges the files, ``server_tls`` keeps the current ones and reloads them when they change,
``door`` turns accepted connections into encrypted ones before a server sees them. Start reading at ``door``.
"""
