"""Users, keys and tokens of a store, in files that only their owner can read, and tokens of others.

``authenticator`` is the entry: it finds the verifier for what a caller presents. ``users_file`` keeps users with
``passwords``; ``bearer`` verifies signed tokens with keys from ``key_sets``; ``delegation`` issues and verifies tokens
for the data path with the store's key, from ``store_key``. Libraries for passwords and signatures are imported where
they are used, so a server without authentication loads none of them.
"""
