"""The HTTP port: Pravega's REST interface, Penstock's own calls, and Pulsar's admin interface."""
