"""Markers in a text that comes in pieces.  Pure text."""


def without_start_of(text: str, marker: str) -> str:
    """`text` without its longest end that may be the start of `marker`."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return text[:-length]
    return text
