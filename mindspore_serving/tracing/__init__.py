"""OpenTelemetry traces: spans of requests, and their export.  Off by default.

It knows no protocol, queue or stage. Only `otlp`, `export` and `attached` import OpenTelemetry, and
they are imported when traces are enabled.
"""
