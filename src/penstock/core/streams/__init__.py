"""Rules about streams: epochs, scaling, routing, transactions, and who may use a writer's or a subscriber's name. Pure.

``history`` is a stream's epochs, ``scaling`` the next epoch, ``routing`` the segment of a key, ``transactions`` the
result of each verb. Imports ``codec`` and ``model`` only. Start reading at ``history``.
"""
