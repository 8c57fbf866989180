"""The commands of cases: ``penstock erase request``, ``erase cases``, ``erase case …``, ``erase ledger …``.

``cases`` opens, lists, shows and ends them, and ``ledger`` exports and applies ledgers. The commands of single
erasures are in ``app.cli.erase``.
"""
