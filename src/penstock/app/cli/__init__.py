"""The commands of ``penstock``: each module holds the commands of one subject. ``common`` is what they share.

Start reading at ``main``.
"""
