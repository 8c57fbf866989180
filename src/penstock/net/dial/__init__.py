"""The client's side of the network: remote stores and controllers behind the same ports as local ones.

Start reading at ``segments`` (the wire protocol) and ``controller`` (gRPC).
"""
