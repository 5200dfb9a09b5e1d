"""Checkpoints of MindFormers: their names, fused matrices, slices of ranks, and settings."""
