"""Rules about segments and their bytes: appends, memory, chunks, garbage, erasure. Pure."""
