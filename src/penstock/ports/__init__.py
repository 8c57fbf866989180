"""Interfaces to the outside world: small Protocols with documented guarantees.

Each port with more than one implementation has a conformance suite in ``penstock.testing.conformance``. It checks every
implementation, including the simulated ones, against these guarantees.
"""
