"""Pinned prompts of an operator: from a file or the options to tokens in the cache."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from mindspore_serving import log
from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.errors import InvalidInputs, ServingError, StartError, reason
from mindspore_serving.llm.engine.pinning import PinnedPrefix
from mindspore_serving.llm.loader import OpenedModel
from mindspore_serving.llm.processing.processor import Processor

ENDS = "a", "1"  # continuations of a prompt: the tokens before them that agree are the prefix
EXPECTED = "a list of texts, of lists of messages, or of mappings with prompt or messages"


class _Pinned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prefix of a prompt that is a text or token ids, or of a conversation."""

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    template_options: dict[str, Any] = {}
    adapter: str = ""
    cache_salt: str = ""

    def request(self, end: str) -> Generate:
        """Return a prompt that begins with this prefix and continues with `end`."""
        prompt, messages = self.prompt, self.messages
        options = {"add_generation_prompt": False, **self.template_options}
        if messages is not None:
            role = "assistant" if messages and messages[-1].get("role") == "user" else "user"
            messages = [*messages, {"role": role, "content": end}]
        elif isinstance(prompt, str):
            prompt, options = prompt + end, {}
        return Generate(
            prompt=prompt, messages=messages, tools=self.tools, template_options=options
        )


def pin_prompts(opened: OpenedModel, processor: Processor) -> None:
    """Compute the `pinned_prompts` of the model's options.

    Raises StartError naming an entry that cannot be used.
    """
    option = opened.config.pinned_prompts
    if not option:
        return
    if not opened.engine.can_generate:
        opened.engine.pin(())  # raises StartError
    source, entries = "pinned_prompts", option
    if isinstance(option, str):
        source, entries = option, _read(option)
    if not isinstance(entries, list | tuple):
        raise StartError(f"{source} is {entries!r:.100}, expected {EXPECTED}")
    prefixes = [
        _prefix(f"{source}[{index}]", entry, opened, processor)
        for index, entry in enumerate(entries)
    ]
    count = opened.engine.pin(prefixes)
    log.info("pinned %d prompts in %d blocks of the cache", len(prefixes), count)


def _read(path: str) -> Any:
    from mindspore_serving.core.yaml_text import load  # not every worker's environment has PyYAML

    problem = f"pinned_prompts is {path!r}, which cannot be read"
    try:
        return load(Path(path).read_text("utf-8"), problem)
    except InvalidInputs as error:
        raise StartError(str(error)) from None
    except (OSError, ValueError) as error:
        raise StartError(f"{problem}: {reason(error)}") from None


def _prefix(name: str, entry: Any, opened: OpenedModel, processor: Processor) -> PinnedPrefix:
    try:
        if isinstance(entry, str):
            entry = {"prompt": entry}
        elif isinstance(entry, list):
            entry = {"messages": entry}
        pinned = msgspec.convert(entry, _Pinned)
        if (pinned.prompt is None) == (pinned.messages is None):
            raise InvalidInputs("expected exactly one of prompt and messages")
        first, second = (processor.read(pinned.request(end)).ids for end in ENDS)
        adapter = opened.find_adapter(pinned.adapter)
    except (ServingError, msgspec.ValidationError) as error:
        raise StartError(f"{name}: {error}; expected {EXPECTED}") from None
    return PinnedPrefix(name, _common(first, second), pinned.cache_salt, adapter)


def _common(first: Sequence[int], second: Sequence[int]) -> Sequence[int]:
    """Return the common prefix of both."""
    pairs = enumerate(zip(first, second, strict=False))
    return first[: next((index for index, (a, b) in pairs if a != b), len(first))]
