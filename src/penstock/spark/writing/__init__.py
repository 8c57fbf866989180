"""The sink: tasks write, and the driver commits each batch exactly once, in one decision."""
