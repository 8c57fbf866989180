"""Object stores: named objects in a directory or in a cloud."""
