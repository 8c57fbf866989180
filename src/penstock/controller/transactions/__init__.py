"""Transactions: begin, decide, commit in order, and abort when their lease ends; batches of transactions."""
