"""The commands of cases: ``penstock erase request``, ``erase cases``, ``erase case …``, ``erase ledger …``.

``cases`` opens, lists, shows and ends them, ``ledger`` exports and applies ledgers, and ``subject`` exports a
person's events. The commands of single
erasures are in ``app.cli.erase``.
"""
