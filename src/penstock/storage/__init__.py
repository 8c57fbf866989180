"""Storage behind the ports: files, SQLite and object stores of this machine, and the same in memory.

Knows ``ports`` and ``codec``; decides nothing about streams. Start reading at ``machine.files`` and ``log.local_log``.
"""
