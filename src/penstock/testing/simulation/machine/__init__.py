"""The simulated machine: files, network, loop, and the ports of a node on them."""
