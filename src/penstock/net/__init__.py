"""The network protocols: servers, and in ``dial`` the clients that call them.

gRPC's fork handlers are switched off before anything here imports gRPC. While calls are in flight, they restart gRPC's
threads in a child that is about to exec another program. Its files are being closed at that moment, and about one child
in several dozen crashes. ``SparkSession.builder.getOrCreate()`` starts Java that way. A program that wants the handlers
sets ``GRPC_ENABLE_FORK_SUPPORT`` itself. A store connected before a fork cannot be used in the child either way.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
