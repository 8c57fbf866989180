"""The commands of cases: ``penstock erase request``, ``erase cases``, ``erase case …``.

``cases`` opens, lists, shows and ends them. The commands of single erasures are in ``app.cli.erase``.
"""
