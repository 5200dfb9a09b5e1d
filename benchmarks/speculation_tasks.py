"""Prompts whose answers repeat earlier text, and some whose answers do not.  A seed makes a task.

The model is small, so an answer that repeats is begun in the prompt: then it goes on with it.
"""

import inspect
import json
import random
import textwrap
from collections.abc import Callable
from pathlib import Path

from mindspore_serving.core.sampling_params import SamplingParams

_MODULES = (json.decoder, inspect, textwrap, random)
_TEXT = Path(__file__).parents[1] / "examples" / "tiny_llm" / "held_out.txt"
_THINGS = ["order", "invoice", "parcel", "student", "garden", "recipe", "letter", "bridge"]
_PLACES = ["Lisbon", "Oslo", "Cairo", "Quito", "Hanoi", "Perth", "Turin", "Accra", "Lima", "Riga"]
_FIELDS = ["name", "size", "price", "owner", "colour", "weight", "origin", "status"]
_USER, _ASSISTANT, _END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n"


def _file(chance: random.Random) -> list[str]:
    """A part of a module of Python's own, from a definition on."""
    lines = inspect.getsource(chance.choice(_MODULES)).splitlines(keepends=True)
    starts = [place for place, line in enumerate(lines[:-30]) if line.lstrip().startswith("def ")]
    start = chance.choice(starts)
    return lines[start : start + 30]


def repeat(chance: random.Random) -> str:
    """Shown twice, so that the third time is a copy."""
    lines = _file(chance)
    text = f"```python\n{''.join(lines)}```\n\n"
    return (
        f"{text}The same once more:\n\n{text}The same once more:\n\n```python\n{lines[0].rstrip()}"
    )


def edit(chance: random.Random) -> str:
    """A comment is added to a file, as it was to another one before."""
    begun = ""
    for _ in range(2):
        lines = _file(chance)
        edited = f"```python\n# Copyright: see LICENSE.\n{lines[0]}"
        begun += (
            f"A file:\n\n```python\n{''.join(lines)}```\n\nThe same with its copyright:\n\n"
            f"{edited}{''.join(lines[1:])}```\n\n"
        )
    return begun[: begun.rindex(edited) + len(edited)].rstrip()


def quote(chance: random.Random) -> str:
    """Questions on a document, each answered in its words; the last answer has begun."""
    words = _TEXT.read_text().split()
    start = chance.randrange(len(words) - 400)
    document = words[start : start + 160]
    questions = [
        f'Question: Where is "{" ".join(document[place : place + 3])}"?\n'
        f'Answer: The document says: "{" ".join(document[place : place + 30])}"\n\n'
        for place in (10, 50, 90, 130)
    ]
    last = questions.pop()
    last = last[: last.index(" ".join(document[134:136]))]
    return f"Document: {' '.join(document)}\n\n{''.join(questions)}{last.rstrip()}"


def records(chance: random.Random) -> str:
    fields = chance.sample(_FIELDS, 5)

    def record() -> dict[str, object]:
        values = {field: chance.choice(_PLACES) for field in fields}
        return {"id": chance.randrange(1000), **values}

    shown = ",\n".join(json.dumps(record(), indent=2) for _ in range(3))
    return f"A list of records as JSON:\n[\n{shown},"


def agent(chance: random.Random) -> str:
    """A session, some turns in: a file was read, changed, and is written whole."""
    lines, name = _file(chance), f"{chance.choice(_THINGS)}.py"
    call = '<tool_call>\n{"name": "%s", "arguments": {"path": "%s"%s}}\n</tool_call>'
    text, begun = "".join(lines), json.dumps("".join(lines[:4]).rstrip())[:-1]
    return (
        f"{_USER}Read {name}, check it, then write it back.{_END}"
        f"{_ASSISTANT}{call % ('read_file', name, '')}{_END}"
        f"<|im_start|>tool\n{json.dumps(text)}{_END}"
        f"{_ASSISTANT}{call % ('check_file', name, '')}{_END}"
        f"<|im_start|>tool\n{name} has no errors.{_END}"
        f'{_ASSISTANT}<tool_call>\n{{"name": "write_file", "arguments": {{"path": "{name}", '
        f'"text": {begun}'
    )


def story(chance: random.Random) -> str:
    thing, place = chance.choice(_THINGS), chance.choice(_PLACES)
    return f"{_USER}Tell me a long story about a {thing} in {place}.{_END}{_ASSISTANT}"


TASKS: dict[str, tuple[Callable[[random.Random], str], float]] = {  # prompt, temperature
    "repeat a file": (repeat, 0.0),
    "edit a file": (edit, 0.0),
    "quote a document": (quote, 0.0),
    "JSON records": (records, 0.0),
    "agent, later turn": (agent, 0.0),
    "story": (story, 0.0),
    "story, sampled": (story, 1.0),
}


def params(temperature: float, seed: int, tokens: int) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True)
