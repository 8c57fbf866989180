"""What shows that the promises hold: simulation, suites of the ports, crashes of real files and processes, fuzzing.

Start reading at ``simulation`` (docs/design/0010-simulation.md) and ``conformance``.
"""
