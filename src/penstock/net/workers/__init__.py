"""A server and its worker processes: calls over one connected pair of sockets each."""
