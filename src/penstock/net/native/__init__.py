"""Our own calls on the network: every call of the control plane, and those of the data plane that the wire protocol lacks.

They are derived from the ports: ``calls.py`` lists them, ``codec.values`` writes their requests and replies,
``serve.py`` answers them and ``remote.py`` makes them. A call added to a port of the control plane is served, and can
be made, without further code. gRPC (``net.grpc``, ``net.dial``) and the wire (``net.wire.calls``) carry them. Start
reading at ``calls.py``. Source: docs/formats/native-api.md.
"""
