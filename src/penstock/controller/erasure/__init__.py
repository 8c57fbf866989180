"""Erasures: requested, decided, performed despite crashes, and proved by a receipt."""
