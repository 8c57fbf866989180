"""The protocols, and the two programs that speak them: servers here, and ``dial`` for those who call them.

gRPC's handlers of forks are switched off before anything here imports it: while calls are under way they start gRPC's
threads again in a child that is about to become another program, on files that are being closed there, and one child in
some dozens dies of it. ``SparkSession.builder.getOrCreate()`` starts Java that way. A program that wants the handlers sets
``GRPC_ENABLE_FORK_SUPPORT`` itself. A store that was connected before a fork is not of use in the child either way.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
