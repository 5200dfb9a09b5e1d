"""Turning a chat into the text a model was trained on, by the Jinja template of its directory.

Templates behave as in the transformers library: the same whitespace rules, functions and filters.
They run in a sandbox with limits on output and time: they cannot be trusted.  Knows no tokens.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from mindspore_serving.errors import InvalidInputs, StartError, TooLarge
from mindspore_serving.llm.chat.sandbox import DEADLINE, Sandbox, TemplateRefused
from mindspore_serving.llm.checkpoint.model_files import read_optional_json

Message = Mapping[str, Any]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What rendering one chat may take.  `max_chars` of text, `max_seconds` of time."""

    max_chars: int = 8 << 20
    max_seconds: float = 2.0


class ChatTemplate:
    """A model's chat template.  Threads may share it.

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
        self._environment = Sandbox(clock)
        self.source = source + (tool_source or "")
        self._template = self._environment.read(source)
        self._tool_template = self._environment.read(tool_source) if tool_source else None
        self._special_tokens = dict(special_tokens or {})
        self._limits = limits or RenderLimits()
        self._clock = clock

    @classmethod
    def open(
        cls, directory: str | Path, special_tokens: Mapping[str, str] | None = None
    ) -> "ChatTemplate | None":
        """Of chat_template.jinja or tokenizer_config.json; None if neither.  Raises StartError."""
        found = _find_sources(Path(directory))
        if "default" not in found:
            return None
        return cls(found["default"], special_tokens, tool_source=found.get("tool_use"))

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of `messages`, each with a "role" and mostly a "content".

        It holds the special tokens already: encode it without adding any.

        Args:
            add_generation_prompt: end with what makes the model answer.
            tools: JSON schemas of what the model may call.
            documents: for templates that know them.
            options: further variables of the template (`enable_thinking`).

        Raises InvalidInputs if the template refuses the messages, TooLarge over the limits.
        """
        self._check(messages)
        variables: dict[str, Any] = {
            **self._special_tokens,
            **(options or {}),
            "messages": [dict(message) for message in messages],
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._tool_template if tools and self._tool_template else self._template
        try:
            return self._collect(template, variables)
        except (InvalidInputs, MemoryError):
            raise
        except TemplateRefused as error:
            failure = f"refuses the messages: {error}"
        except RecursionError:
            failure = "failed: it calls itself forever"
        except Exception as error:  # a template can raise what any expression can
            failure = f"failed on these messages: {error}"
        raise InvalidInputs(f"the model's chat template {failure}")

    def _check(self, messages: Sequence[Message]) -> None:
        if not messages:
            raise InvalidInputs("messages is empty, expected at least one message")
        for index, message in enumerate(messages):
            if not isinstance(message, Mapping):
                raise InvalidInputs(
                    f"messages[{index}] is of type {type(message).__name__}, expected an object"
                )
            role = message.get("role")
            # Some models have roles of their own, which their templates name ("observation").
            is_own = f"'{role}'" in self.source or f'"{role}"' in self.source
            if not isinstance(role, str) or not (role in ROLES or is_own):
                raise InvalidInputs(
                    f"messages[{index}] has role {role!r}, expected one of "
                    f"{', '.join(sorted(ROLES))}"
                )

    def _collect(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        deadline = self._clock() + self._limits.max_seconds
        pieces: list[str] = []
        size = 0
        for piece in template.generate({**variables, DEADLINE: deadline}):
            pieces.append(piece)
            size += len(piece)
            if size > self._limits.max_chars:
                raise TooLarge(
                    f"the chat is over {self._limits.max_chars} characters as the model's text, "
                    "expected less"
                )
        return "".join(pieces)


def _find_sources(directory: Path) -> dict[str, str]:
    """Templates by name ("default", "tool_use"), first those of files."""
    found = _configured(directory / "tokenizer_config.json")
    files = {path.stem: path for path in (directory / "additional_chat_templates").glob("*.jinja")}
    files["default"] = directory / "chat_template.jinja"
    for name, path in files.items():
        try:
            found[name] = path.read_text("utf-8")
        except (FileNotFoundError, NotADirectoryError):  # the latter below a GGUF file
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"{path} cannot be read: {error}") from error
    return found


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
            f"{path}: chat_template is neither a text nor a list of objects with a name and a "
            "template"
        ) from None
