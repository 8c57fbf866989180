"""The gRPC interfaces: their ``.proto`` files and the code generated from them (``make proto``)."""
