"""Reader groups and subscribers: their records, their positions, and how rules move them."""
