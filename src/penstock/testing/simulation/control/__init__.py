"""The control plane in simulation: late answers, crashes and clocks that jump.

``run`` starts a ``world`` whose tables answer late; each other module is a kind of user with its checks. Imports the
controller, the client and ``testing.simulation``. Start reading at ``run``.
"""
