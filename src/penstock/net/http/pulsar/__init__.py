"""Pulsar's admin REST API, version 2. Start reading at ``api``.

``api`` finds the call for a path; ``topics``, ``namespaces``, ``subscriptions``, ``policy_calls`` and ``tenants``
answer it with a ``ControlPlane``. ``names``, ``positions`` and ``policies`` translate Pulsar's concepts to ours;
``records`` stores what only Pulsar has. Imports ``net.http``, ``core``, ``codec`` and ``ports``. Start reading at
``api`` and ``context``.
"""
