"""Scaling by rate: how fast the segments of a stream grow, and which of them are split or merged.

``rates.py`` turns samples of a counter into rates over four windows, and ``decision.py`` turns rates into a decision with
its reason. The segment store measures and reports, the controller decides; both use these functions.
Start reading at ``decision.py``. Source: docs/design/0039-scaling-by-rate.md.
"""
