"""Stream cuts: their order, the checks of a caller's cut, and which segments a reader may start. Pure.

``order`` is the partial order of cuts across scales; the other modules build on it. Imports ``core.streams`` and
``model``. Start reading at ``order``.
"""
