"""Metrics of a server for Prometheus, at ``/metrics`` of the HTTP port.

Each process counts in ``app.telemetry.Counters``. The server collects those of its workers, samples the largest streams,
and renders all of it with ``prometheus_client``. Start reading at ``catalogue``, which lists every metric;
``docs/reference/metrics.md`` is generated from it.
"""
