"""OpenTelemetry traces: which spans a request has, and how they leave.  Off unless asked for.

Knows no protocol, queue or stage.  Only `otlp`, `export` and `attached` import OpenTelemetry, and
they are imported when traces are on.
"""
