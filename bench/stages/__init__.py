"""Where the time of each workload goes: microseconds of CPU for each event and stage, beside a bare loop.

The bare loop (``bare_server.py``, ``bare_client.py``) does only what physics needs: receive, number, one vectored write,
one ``fdatasync``, answer. It keeps no metadata, checks no rights and recovers nothing.

``sampling.py`` measures the CPU of a process from outside and shares it among stages by samples of its stacks.
``rules.py`` names the stage of a stack. ``writes.py``, ``frames.py``, ``reads.py`` and ``starts.py`` drive the workloads.
"""
