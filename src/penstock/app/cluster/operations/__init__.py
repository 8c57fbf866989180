"""What operators do with a cluster: see its state (``status``), and ask for changes (``wishes``).

``reading`` reads nodes of which some may be damaged; ``logs`` finds what of each log is not published yet, and which
ledgers lack a bookie. Start reading at ``status``.
"""
