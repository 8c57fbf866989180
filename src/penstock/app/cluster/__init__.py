"""A store on several machines: its creation, its controllers, and its stores.

``address`` and ``access.secret`` are what all its processes are given; ``init`` creates it. ``levels``: which formats they
may write. ``access``: keys and users that they share. ``operations``: what operators do. A store is a ``node``, which keeps
one ``holding`` for each of its containers; a ``unit`` is an open container. Clients reach the units through ``units_router``,
and controllers through ``unit_links``; ``store_process`` puts them together. Needs the extra ``cluster``. Reasons:
docs/design/0065-cluster.md.
"""
