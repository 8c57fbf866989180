"""Commands for operators: start, doctor, scrub, rebuild, backup.

Imports the packages of ``app`` that do the work (``backup``, ``integrity``, ``standalone``, ``demo``) and
``cli.common``. Each module parses options, calls one of them and prints its report. Start reading at ``servers``.
"""
