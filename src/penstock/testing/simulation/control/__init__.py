"""The control plane in simulation: late answers, crashes and clocks that jump."""
