"""Transactions: begin, decide, commit in order, and abort when their lease ends; batches of transactions.

``calls`` answers users. ``decisions`` makes an outcome durable as an entry of the stream's commit queue; ``commits``
performs the entries in order. ``batches`` commits several transactions at once, exactly once; ``sweeper`` ends what
has expired. The rules are in ``core.streams.transactions``. Start reading at ``decisions``.
"""
