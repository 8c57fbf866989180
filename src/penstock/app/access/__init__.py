"""Authentication of a server: ``settings`` are plain values, ``security`` opens the parts that verify callers and sign
tokens, and puts the guard in front of the services.
"""
