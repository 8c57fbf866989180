"""Three stores of a cluster in simulation, with controllers that place containers, and clients.

``tier`` has the shared tier 2, ``machine`` a machine with a store, ``clients`` the calls of clients, ``shared`` what they
share, ``faults`` what breaks, and ``aims`` the moments for which faults wait. Imports the stores of ``app.cluster`` and
the actors of the single store. Start reading at ``run``. Source: docs/design/0065-cluster.md, "Simulation".
"""
