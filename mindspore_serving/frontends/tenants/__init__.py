"""Holders of API keys: their limits, what they use, and the logs of what they do."""
