"""Months of retention in simulation: users, a slow model, and checks against it.

``actions`` are the users. ``model`` knows every event and checks each move of a head. ``checks`` compares the store
with the model. Imports the controller, the client and ``testing.simulation``. Start reading at ``run``.
"""
