"""The gRPC port: Pravega's controller service and the native one.

``grpc_server`` puts the port together; ``scopes``, ``streams``, ``groups`` and ``tables`` answer Pravega's calls with
a ``ControlPlane``, and ``mapping`` converts messages. ``gate`` is a proxy that limits memory. Imports ``net.native``,
``net.wire``, ``core``, ``codec`` and ``ports``; it knows no controller. Start reading at ``grpc_server``.
"""
