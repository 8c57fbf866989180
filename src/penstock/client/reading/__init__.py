"""Readers, alone and in groups: every event once, in order per routing key, across scaling.

Start reading at ``reader`` for one reader, and at ``group_reader`` for groups. ``group_state`` has every decision of
a group as a pure function; ``group_table`` stores the state. ``fetching`` reads ahead for both kinds of readers.
Imports ``client.writing`` (Arrow), ``core``, ``codec`` and ``ports``; knows no server.
"""
