"""The sink: tasks write, and the driver commits each batch by one decision, exactly once."""
