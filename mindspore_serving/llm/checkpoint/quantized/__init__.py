"""Quantised checkpoints of other software: the tensors that make up a matrix, and their meaning."""
