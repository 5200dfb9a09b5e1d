"""Parts of an answer: what parsers return."""

from dataclasses import dataclass
from typing import TypeAlias

from mindspore_serving.core.llm_messages import ToolCallDelta


@dataclass(frozen=True, slots=True)
class PlainContent:
    """Text that is neither reasoning nor a call."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model thinks before it answers."""

    text: str


Delta: TypeAlias = PlainContent | Reasoning | ToolCallDelta
