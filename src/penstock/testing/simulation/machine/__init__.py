"""The simulated machine: files, network, loop, and the ports of a node on them.

``loop`` has the virtual clock, ``files`` a page cache that loses what was not synced, ``network`` connections that
fail. ``cluster`` runs the product's own log, store, controller and servers on them. Start reading at ``cluster``.
"""
