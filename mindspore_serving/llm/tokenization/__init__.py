"""Text to tokens and back, and where a text stops."""
