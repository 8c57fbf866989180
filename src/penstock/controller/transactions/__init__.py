"""Transactions: begun, decided, committed in order, and swept when their lease ends; batches of many."""
