"""The worker processes of a server: their layout, their start, and their work.

``supervisor`` starts them, ``process`` is what runs in one. ``heartbeats`` and ``reports`` are shared with the controllers
of a cluster. Start reading at ``supervisor``.
"""
