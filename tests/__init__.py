"""The tests of Penstock, and the programs that test it for hours; nothing of this is in the wheel.

Programs, each a command of its own: ``python -m tests.soak`` runs them all, ``tests.crash.*`` works on real files and
processes, ``tests.fuzz`` feeds the decoders, ``tests.growth`` measures what a year leaves in the metadata.
"""
