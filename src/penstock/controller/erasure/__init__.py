"""Erasures: asked for, decided, performed whatever crashes, and proved by a receipt."""
