"""This machine: files, disk, clock, threads, randomness, and memory that processes share.

Implements the ports of a machine: ``files``, ``clock``, ``offload``, ``rng``, ``disk``, ``holds`` and
``shared_counts``. The other packages of ``storage`` use it. Imports ``ports`` and ``model`` only. Start reading at
``files``.
"""
