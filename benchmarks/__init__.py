"""Measurements, each run as `python -m benchmarks.NAME`: a table, and one JSON line last."""
