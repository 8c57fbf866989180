"""A store on several machines: its creation, its controllers, and its stores.

``address`` and ``secret`` are what all its processes are given; ``init`` creates it. ``unit`` opens one container in a
store's process. Needs the extra ``cluster``. Reasons:
docs/design/0065-cluster.md.
"""
