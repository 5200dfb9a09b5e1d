"""Conversations whose messages are made piece by piece.

Consecutive content of a role is one message.  Knows no protocol's contents.
"""

from dataclasses import dataclass, field

from mindspore_serving.frontends.chat.messages import ChatMessage, ContentPart, ToolCall


@dataclass(slots=True)
class Turn:
    """Consecutive content of one role, from one message or several."""

    role: str
    texts: list[ContentPart] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    call_id: str | None = None  # the call that this is the result of
    name: str | None = None  # of the tool that this is a result of

    def add_text(self, text: str | None) -> None:
        self.texts.append(ContentPart("text", text))

    def to_message(self) -> ChatMessage:
        return ChatMessage(
            self.role,
            self.texts or None,
            name=self.name,
            tool_calls=self.calls or None,
            tool_call_id=self.call_id,
            reasoning_content="".join(self.reasoning) or None,
        )


class ChatTurns:
    """Messages of a chat, built in order."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []

    def turn_of(self, role: str) -> Turn:
        """Return the turn of `role`: the last one, or a new one if that is another role's."""
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(Turn(role))
        return self._turns[-1]

    def add_result(
        self, call_id: str | None, parts: list[ContentPart], name: str | None = None
    ) -> None:
        """Append the result of a tool."""
        self._turns.append(Turn("tool", parts, call_id=call_id, name=name))

    @property
    def awaits_result(self) -> bool:
        """True if the last message calls tools."""
        return bool(self._turns and self._turns[-1].calls)

    def to_messages(self) -> list[ChatMessage]:
        return [turn.to_message() for turn in self._turns]
