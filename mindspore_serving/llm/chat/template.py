"""Chat templates: from messages to the text that a model was trained on, by the directory's Jinja.

Templates behave as in the transformers library: the same whitespace rules, functions and filters.
They are not trusted and run in a sandbox with limits of output and time.  Knows no tokens.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from mindspore_serving.errors import InvalidInputs, StartError, TooLarge
from mindspore_serving.llm.chat.arrangement import Arrangement
from mindspore_serving.llm.chat.budget import RenderingBudget
from mindspore_serving.llm.chat.messages import Message, to_template
from mindspore_serving.llm.chat.sandbox import Sandbox, TemplateRefused, spending
from mindspore_serving.llm.checkpoint.chatglm import chat_template
from mindspore_serving.llm.checkpoint.model_files import read_optional_json

_MARK = "\u2063continue\u2063 "  # after the text of a message that the answer continues
_PROBE = "6f1e-text"
_WORK = 16  # characters of intermediate texts allowed per character of the result


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Limits of one rendering: characters of the text, and seconds."""

    max_chars: int = 8 << 20
    max_seconds: float = 2.0


class ChatTemplate:
    """Chat template of a model; threads may share it.

    Args:
        source: the Jinja template.
        special_tokens: what the template knows as `bos_token`, `eos_token` and so on.
        tool_source: the template for chats with tools, if the model has another for them.

    `source` is then the text of both.  Raises StartError naming the line that is not Jinja.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        tool_source: str | None = None,
        limits: RenderLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environment = Sandbox()
        self.source = source + (tool_source or "")
        self._template = self._environment.read(source)
        self._tool_template = self._environment.read(tool_source) if tool_source else None
        self._special_tokens = dict(special_tokens or {})
        self._limits = limits or RenderLimits()
        self._clock = clock
        self._arrangement = Arrangement(self._render_probe)

    @classmethod
    def open(
        cls, directory: str | Path, special_tokens: Mapping[str, str] | None = None
    ) -> "ChatTemplate | None":
        """Return the template of a model's directory, None if it has none.

        It is read from chat_template.jinja, chat_template.json or tokenizer_config.json; ChatGLM's
        is known by its tokenizer.  Raises StartError.
        """
        sources = _find_sources(Path(directory))
        if "default" not in sources:
            return None
        return cls(sources["default"], special_tokens, tool_source=sources.get("tool_use"))

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        media_tokens: Mapping[str, str] | None = None,
    ) -> str:
        """Return the text of `messages`, each with a "role" and usually a "content".

        It holds the special tokens already: encode it without adding any.

        Args:
            messages: the chat, oldest message first.
            add_generation_prompt: end with what makes the model answer.
            continue_final_message: end with the text of the last message, which the answer
                continues, instead of a generation prompt.
            tools: JSON schemas of the functions that the model may call.
            options: further variables of the template (`documents`, `enable_thinking`).
            media_tokens: tokens in place of parts by their type, {"image": "<image>"}, where the
                template handles only texts.

        Raises InvalidInputs if the template refuses the messages, TooLarge over the limits.
        """
        converted = self._arrangement.arrange(to_template(messages, self.source))
        if continue_final_message:
            last = converted[-1] = {**converted[-1]}
            text = last.get("content")
            if not isinstance(text, str):
                raise InvalidInputs("the last message has no text to continue")
            last["content"] = text + _MARK
        converted = [self._adapt_content(message, media_tokens) for message in converted]
        text_of_chat = self._render(
            {
                "documents": None,
                **self._special_tokens,
                **(options or {}),
                "messages": converted,
                "tools": tools,
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            }
        )
        return _cut(text_of_chat) if continue_final_message else text_of_chat

    @cached_property
    def shows_system(self) -> bool:
        """True if the template renders system messages."""
        probe = "6f1e-system"
        try:
            text = self.render([_message("system", probe), _message("user", "Hello")])
        except InvalidInputs:
            return False
        return probe in text

    def _adapt_content(
        self, message: dict[str, Any], media_tokens: Mapping[str, str] | None
    ) -> dict[str, Any]:
        """Convert a message's content to the form that the template handles.

        Text becomes parts for a template that handles only parts; parts become text for one that
        handles only text, with `media_tokens` for images and sounds.
        """
        content = message["content"]
        if isinstance(content, str) and self._knows_parts and not self._knows_texts:
            return {**message, "content": [{"type": "text", "text": content}]}
        if isinstance(content, list) and media_tokens and not self._knows_parts:
            texts = [part.get("text") or media_tokens.get(part.get("type"), "") for part in content]
            return {**message, "content": "".join(texts)}
        return message

    @cached_property
    def _knows_texts(self) -> bool:
        return self._shows(_PROBE)

    @cached_property
    def _knows_parts(self) -> bool:
        # The test of the source saves most templates a second rendering.
        return "type" in self.source and self._shows([{"type": "text", "text": _PROBE}])

    def _shows(self, content: Any) -> bool:
        """Return whether a user's content is rendered as its text and nothing else."""
        try:
            text = self._render_messages([_message("user", content)])
        except InvalidInputs:
            return False
        return _PROBE in text and f"'{_PROBE}'" not in text

    def _render_probe(self, messages: Sequence[dict[str, Any]]) -> str:
        return self._render_messages([self._adapt_content(message, None) for message in messages])

    def _render_messages(self, messages: Sequence[Message]) -> str:
        variables: dict[str, Any] = {
            **self._special_tokens,
            "documents": None,
            "tools": None,
            "messages": messages,
            "add_generation_prompt": False,
        }
        return self._render(variables)

    def _render(self, variables: dict[str, Any]) -> str:
        """Render a template within the budget, with every failure as InvalidInputs or TooLarge."""
        has_tools = variables["tools"] and self._tool_template
        template = self._tool_template if has_tools else self._template
        assert template is not None
        limits = self._limits
        work = max(1 << 20, _WORK * limits.max_chars)
        try:
            with spending(RenderingBudget(work, limits.max_seconds, self._clock)):
                return self._collect(template, variables)
        except (InvalidInputs, MemoryError):
            raise
        except TemplateRefused as error:
            failure = f"refuses the messages: {error}"
        except RecursionError:
            failure = "failed: its recursion is too deep"
        except Exception as error:  # a template can raise what any expression can
            failure = f"failed on these messages: {error}"
        raise InvalidInputs(f"the model's chat template {failure}")

    def _collect(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        for piece in template.generate(variables):
            pieces.append(piece)
            size += len(piece)
            if size > self._limits.max_chars:
                raise TooLarge(
                    f"the chat has over {self._limits.max_chars} characters once rendered by the "
                    "model's template, expected fewer"
                )
        return "".join(pieces)


def _message(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


def _cut(text: str) -> str:
    """Return `text` up to the mark; templates that trim contents leave no whitespace before it."""
    before, mark, _ = text.rpartition(_MARK.rstrip())
    if not mark:
        raise InvalidInputs(
            "the model's chat template does not render the last message, so the answer cannot "
            "continue it"
        )
    return before if text.startswith(_MARK, len(before)) else before.rstrip()


def _find_sources(directory: Path) -> dict[str, str]:
    """Return the templates by name ("default", "tool_use"); files take precedence."""
    sources = _configured(directory / "tokenizer_config.json")
    sources |= _configured(directory / "chat_template.json")  # of a processor, for media
    built_in = None if "default" in sources else chat_template(directory)
    if built_in is not None:
        sources["default"] = built_in
    files = {path.stem: path for path in (directory / "additional_chat_templates").glob("*.jinja")}
    files["default"] = directory / "chat_template.jinja"
    for name, path in files.items():
        try:
            sources[name] = path.read_text("utf-8")
        except (FileNotFoundError, NotADirectoryError):  # the latter below a GGUF file
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"{path} cannot be read: {error}") from error
    return sources


def _configured(path: Path) -> dict[str, str]:
    config = read_optional_json(path).get("chat_template")
    if config is None:
        return {}
    if isinstance(config, str):
        return {"default": config}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in config}
    except (KeyError, TypeError):
        raise StartError(
            f"{path}: chat_template is neither a string nor a list of objects with name and "
            "template"
        ) from None
