"""How the classes of values are made."""
