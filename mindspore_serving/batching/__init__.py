"""Batching rules: when a batch is complete, and how instances become one array and back."""
