"""Stores of values by name that servers may share: a directory, Valkey or Redis, buckets."""
