"""Grammars that constrain answers, as masks over the vocabulary."""
