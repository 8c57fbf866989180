"""What the control plane answers about retention, field by field. As JSON they are the forms of docs/formats/planner.md."""
