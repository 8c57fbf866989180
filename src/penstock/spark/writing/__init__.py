"""The sink: tasks write, and the driver commits each batch exactly once.

Tasks run ``attempt``, which writes into tier 2 itself (``direct_attempt``) or sends appends (``wire_attempt``). Their
``messages`` reach the driver, and ``batch_commit`` makes them one transaction. Imports the client. Start reading at
``sink``.
"""
