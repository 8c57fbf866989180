"""What the control plane answers about retention, field by field. As JSON they are the forms of docs/formats/planner.md.

Frozen values, one module per question; ``codec.answers`` writes them as JSON. The forms are documented in
docs/formats/planner.md. Imports ``model`` only. Start reading at ``plan``.
"""
