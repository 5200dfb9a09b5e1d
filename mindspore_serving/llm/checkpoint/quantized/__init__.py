"""Quantised checkpoints of other software: which tensors make a matrix, and what they stand for."""
