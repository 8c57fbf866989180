"""Months of retention in simulation: users, a slow model, and checks against it."""
