"""Activation-aware scaling of a model's weights before they are quantised (AWQ)."""
