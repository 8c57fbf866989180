"""The secret of a cluster, keys that follow from it, and users and signing keys that its controllers share."""
