"""What an architecture is, as data: a row for each class of config.json, and its words checked.

Knows no tensor and no runtime; `models` computes what is said here.
"""
