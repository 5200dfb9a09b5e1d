"""Scaling a model's weights by what they are multiplied with, before they are rounded (AWQ)."""
