"""Grace: what was deleted and can still be had back, for how long, and how it comes back."""
