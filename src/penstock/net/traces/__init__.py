"""Spans for OpenTelemetry's collectors.

``start`` turns tracing on for a process; ``open_telemetry`` is the tracer over OpenTelemetry's packages, which nothing
else imports, and which are loaded only where tracing is on. Start reading at ``start``.
Source: docs/design/0058-traces.md.
"""
