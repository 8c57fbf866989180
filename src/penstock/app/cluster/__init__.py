"""A store on several machines: its creation, its controllers, and its stores.

``address`` and ``secret`` are what all its processes are given; ``init`` creates it. Needs the extra ``cluster``. Reasons:
docs/design/0065-cluster.md.
"""
