"""The world outside, as small Protocols that state their laws.

Each port with more than one implementation has a conformance suite in ``penstock.testing.conformance`` that holds all
of them, the simulated ones included, to the laws written here.
"""
