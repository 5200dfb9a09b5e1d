"""Architectures as data: a row for each class of config.json, and the validation of its keys.

Knows no tensor and no runtime; `models` computes what is described here.
"""
