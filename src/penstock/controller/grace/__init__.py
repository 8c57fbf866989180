"""Grace: deleted data that can still be restored, for how long, and how it is restored."""
