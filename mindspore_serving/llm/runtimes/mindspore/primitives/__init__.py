"""Operators of an Ascend device, with equals that run anywhere.  See `table`."""
