"""Object stores: whole objects under names, in a directory or in a cloud's store."""
