"""Retention of very many streams at once: facts and decisions as Arrow columns, and bulk computations on them.

Needs numpy and pyarrow. ``screen`` decides whole columns; only the streams that it cannot decide go to the planner
(``work``). ``layout`` is the table of facts, ``sources`` and ``store`` are where facts come from, ``tally`` and
``report`` what comes out. The Spark job is ``spark.jobs.fleet``. Start reading at ``work``. Source:
docs/how-to/fleet.md.
"""
