"""The prompts that an operator has pinned: from a file, or as they are, to tokens in the cache."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from mindspore_serving import log
from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.errors import InvalidInputs, ServingError, StartError
from mindspore_serving.llm.engine.pinning import Beginning
from mindspore_serving.llm.loader import Opened
from mindspore_serving.llm.processing.processor import Processor

ENDS = "a", "1"  # that prompts may go on with: what they begin with is what all have in common
EXPECTED = "a list of texts, of lists of messages, or of mappings with prompt or messages"


class _Pinned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The beginning of a prompt that is a text or token ids, or of a conversation."""

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    template_options: dict[str, Any] = {}
    adapter: str = ""
    cache_salt: str = ""

    def request(self, end: str) -> Generate:
        """A prompt that begins so and goes on with `end`."""
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


def pin_prompts(opened: Opened, processor: Processor) -> None:
    """Compute the `pinned_prompts` of the model's options.  Raises StartError naming the one that
    cannot be used.
    """
    given = opened.config.pinned_prompts
    if not given:
        return
    if not opened.engine.can_generate:
        opened.engine.pin(())  # raises what it cannot do
    where, entries = "pinned_prompts", given
    if isinstance(given, str):
        where, entries = given, _read(given)
    if not isinstance(entries, list | tuple):
        raise StartError(f"{where} is {entries!r:.100}, expected {EXPECTED}")
    places = [f"{where}[{index}]" for index in range(len(entries))]
    pairs = zip(places, entries, strict=True)
    beginnings = [_beginning(place, entry, opened, processor) for place, entry in pairs]
    count = opened.engine.pin(beginnings)
    log.info("%d pinned prompts have %d blocks of the cache", len(beginnings), count)


def _read(path: str) -> Any:
    from mindspore_serving.core.yaml_text import load  # not every worker's environment has PyYAML

    where = f"pinned_prompts is {path!r}, which cannot be read"
    try:
        return load(Path(path).read_text("utf-8"), where)
    except InvalidInputs as error:
        raise StartError(str(error)) from None
    except (OSError, ValueError) as error:
        raise StartError(f"{where}: {error}") from None


def _beginning(where: str, entry: Any, opened: Opened, processor: Processor) -> Beginning:
    try:
        if isinstance(entry, str):
            entry = {"prompt": entry}
        elif isinstance(entry, list):
            entry = {"messages": entry}
        pinned = msgspec.convert(entry, _Pinned)
        if (pinned.prompt is None) == (pinned.messages is None):
            raise InvalidInputs("expected exactly one of prompt and messages")
        one, other = (processor.read(pinned.request(end)).ids for end in ENDS)
        adapter = opened.find_adapter(pinned.adapter)
    except (ServingError, msgspec.ValidationError) as error:
        raise StartError(f"{where}: {error}; expected is {EXPECTED}") from None
    return Beginning(where, _common(one, other), pinned.cache_salt, adapter)


def _common(one: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    """What both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((place for place, (a, b) in pairs if a != b), len(one))]
