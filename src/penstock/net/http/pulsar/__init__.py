"""Pulsar's admin REST API, version 2. Start reading at ``api``."""
