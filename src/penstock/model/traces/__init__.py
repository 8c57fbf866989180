"""Spans: what a program does and for how long, in traces that cross processes.

``spans`` has the values, the Protocol of a tracer, and the one tracer of this process. No OpenTelemetry is loaded here;
``penstock.net.traces`` installs a tracer over it. Start reading at ``spans``.
"""
