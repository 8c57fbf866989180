"""Who may do what in a cluster: the secret of its processes, keys that follow from it, and users that controllers share."""
