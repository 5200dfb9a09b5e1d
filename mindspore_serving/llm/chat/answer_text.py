"""What an answer's text is taken apart into, and the keys of the calls in it."""

from dataclasses import dataclass

KEYS = {
    "name": "name",
    "arguments": "arguments",
    "parameters": "arguments",
    "id": "id",  # this and the next are added by some models
    "type": "type",
}
"""Of a call as JSON: what they mean."""


@dataclass(frozen=True, slots=True)
class Content:
    """Text that is neither reasoning nor a call."""

    text: str
