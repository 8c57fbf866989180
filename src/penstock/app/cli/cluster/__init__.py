"""The commands of clusters: ``penstock cluster …``, ``penstock controller``, ``penstock store``.

``options`` are shared. Each module imports ``app.cluster`` when it is called, which needs the extra ``cluster``. Start
reading at ``cluster``.
"""
