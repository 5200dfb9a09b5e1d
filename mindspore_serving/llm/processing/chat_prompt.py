"""Text of a conversation, by the model's chat template or by that of a request.

A conversation that is too long loses its oldest turns.  Knows no tokens.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from mindspore_serving.core.llm_messages import Generate, Refused, RequestRefused, Tokenize
from mindspore_serving.errors import InvalidField, InvalidInputs, StartError, printable
from mindspore_serving.llm.chat.generic_tools import with_tools
from mindspore_serving.llm.chat.messages import Message
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.chat.tool_formats import GENERIC, to_template, with_system_tools

Messages: TypeAlias = list[dict[str, Any]]
_MAX_TEMPLATES = 16  # of requests, kept compiled


class ChatPrompt:
    """Renders conversations for one model.  Threads may share it.

    Args:
        template: the model's chat template, None if it has none.
        special_tokens: variables of templates such as `bos_token`.
        tool_format: format of tool calls, see `chat.tool_formats`.
        system_message: of conversations that have none.
    """

    def __init__(
        self,
        template: ChatTemplate | None,
        special_tokens: Mapping[str, str],
        tool_format: str,
        system_message: str = "",
    ) -> None:
        self._template = template
        self._system_message = system_message
        self._tool_format = tool_format
        self._read = lru_cache(_MAX_TEMPLATES)(lambda text: ChatTemplate(text, special_tokens))

    def text(
        self,
        request: Generate | Tokenize,
        tools: Sequence[dict[str, Any]] | None,
        media_tokens: Mapping[str, str] | None = None,
    ) -> str:
        """Return the text of the messages of `request`, which see `tools`.

        `media_tokens` are those of `ChatTemplate.render`.  Raises RequestRefused or InvalidField.
        """
        try:
            return self._render(request, tools, media_tokens)
        except InvalidField:
            raise
        except (InvalidInputs, StartError) as error:
            raise RequestRefused(Refused("template", printable(str(error)))) from None

    def _render(
        self,
        request: Generate | Tokenize,
        tools: Sequence[dict[str, Any]] | None,
        media_tokens: Mapping[str, str] | None,
    ) -> str:
        template = self._find(request)
        options = dict(request.template_options)
        continues = bool(options.pop("continue_final_message", False))
        adds = bool(options.pop("add_generation_prompt", not continues))
        if continues and adds:
            raise InvalidField(
                "continue_final_message", "is set, expected no add_generation_prompt with it"
            )
        messages = self._with_system(request.messages or ())
        if self._tool_format == GENERIC:
            is_free = request.tool_choice.mode != "required"
            has_system = template.shows_system
            messages = with_tools(messages, tools or (), has_system=has_system, is_free=is_free)
            tools = None
        messages = with_system_tools(messages, tools or (), template.source)
        return template.render(
            messages,
            add_generation_prompt=adds,
            continue_final_message=continues,
            tools=to_template(tools) if tools else None,
            options=options,
            media_tokens=media_tokens,
        )

    def _with_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return `messages` behind the operator's system message, unless they have one."""
        roles = {message.get("role") for message in messages}
        if not self._system_message or roles & {"system", "developer"}:
            return messages
        return [{"role": "system", "content": self._system_message}, *messages]

    def _find(self, request: Generate | Tokenize) -> ChatTemplate:
        source = request.chat_template if isinstance(request, Generate) else ""
        if source:
            return self._read(source)
        if self._template is None:
            raise InvalidInputs(
                "the model has no chat template: send a prompt, or add chat_template.jinja to it"
            )
        return self._template


def shortened(messages: Messages, fits: Callable[[Messages], bool]) -> Messages:
    """Return `messages` without their oldest turns, as many as are needed until `fits`.

    Messages of the system stay, and the last turn, even if it does not fit by itself.  A turn
    begins with a message of the user, so results of tools stay with their calls.
    """
    turns = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    starts = [0, *turns[1:]]

    def behind(start: int) -> Messages:
        kept = [
            message
            for message in messages[:start]
            if message.get("role") in ("system", "developer")
        ]
        return [*kept, *messages[start:]]

    index = bisect_left(starts, True, hi=len(starts) - 1, key=lambda start: fits(behind(start)))
    return behind(starts[index])
