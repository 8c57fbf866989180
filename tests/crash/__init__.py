"""The real store on a real file system: crash states, failing system calls, rotten bits, ``kill -9``.

Source: docs/design/0010-simulation.md, "The real files".
"""
