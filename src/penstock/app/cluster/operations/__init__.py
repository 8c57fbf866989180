"""What operators do with a cluster: see its state (``status``), ask for changes (``requests``), find out what is wrong
(``doctor``), and restore lost records (``rebuild``, which ``rebuild_command`` calls).

``reading`` reads nodes of which some may be damaged; ``logs`` finds what of each log tier 2 lacks, and which ledgers lack a
copy; ``after_rebuild`` is what the next controller does. Start reading at ``status``.
"""
