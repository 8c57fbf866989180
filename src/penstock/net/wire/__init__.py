"""Pravega's wire protocol over TCP: the segment store's port."""
