"""Tokenization: text to tokens and back, and where a generated text stops."""
