"""The HTTP port: Pravega's REST interface, Penstock's own calls, and Pulsar's admin interface.

``http_server`` puts the port together; each ``*_routes`` module answers one set of paths with a ``ControlPlane``, and
each ``*_documents`` module converts JSON. ``guard`` and ``connections`` limit what clients may use. Pulsar's admin
interface is in ``pulsar``. Imports no controller and no store. Start reading at ``http_server``.
"""
