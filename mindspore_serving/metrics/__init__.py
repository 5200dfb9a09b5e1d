"""Metrics of a server: counting, meaning, and Prometheus' text format."""
