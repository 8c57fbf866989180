"""A log on ledgers in simulation: owners that die or are deposed, bookies that fail, a coordinator that loses answers.

``machine`` has the simulated coordinator, connections and owners' processes. ``history`` compares what owners see with
what was acknowledged. Imports ``testing.bookkeeper`` and the product's own log. Start reading at ``run``. Source:
docs/design/0063-ownership.md.
"""
