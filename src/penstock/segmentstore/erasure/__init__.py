"""Erasure in the store: chunks written anew without the erased bytes, and a log that holds none of them."""
