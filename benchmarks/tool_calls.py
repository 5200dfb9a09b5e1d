"""How well a model calls tools: `python -m benchmarks.tool_calls [MODEL]`, by default the real
small model of the examples.

Sixty tasks (`tool_tasks`), each a chat with `tool_choice` "auto", at temperature 0, and those with
a call again with "required".  Prints the share of answers whose calls parse: known names, arguments
that are JSON and follow the schema, no piece of a call left in the text; and the share that is
right.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tool_tasks import TASKS, TOOLS, Task
from examples.smollm2 import INSTALL, find_model
from mindspore_serving.core.llm_messages import Chunk, Generate, ToolChoice
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.loader import OpenedModel, open_model
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.outputs import PendingAnswer
from mindspore_serving.llm.processing.answer_format import AnswerParser
from mindspore_serving.llm.processing.processor import Processor

MAX_TOKENS = 128
MARKS = ("<tool_call>", "</tool_call>", '"arguments"', '"parameters"')


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer: its text and its calls, each a name and the text of its arguments."""

    text: str
    calls: tuple[tuple[str, str], ...]
    is_cut: bool


def ask(opened: OpenedModel, tasks: Sequence[Task], mode: Any) -> list[Answered]:
    """The answers to `tasks`, in one batch."""
    processor = Processor(opened.tokenizer, opened.chat_template, opened.card())
    engine, formats, pending = opened.engine, {}, {}
    assert isinstance(engine, Engine)
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    for index, task in enumerate(tasks):
        request = Generate(
            messages=[{"role": "user", "content": task.says}],
            tools=[TOOLS[name] for name in task.tools],
            tool_choice=ToolChoice(mode=mode, parallel=len(task.calls) > 1),
            parse_output=True,
            params=params,
        )
        prepared = processor.prepare(request)
        prepared.add_to(engine, str(index))
        formats[str(index)] = prepared.answer_format
        pending[str(index)] = PendingAnswer(prepared.text, prepared.prompt_ids, 1)
    while engine.has_work:
        for request_id, generated in engine.step():
            pending[request_id].take(generated)
    found = []
    for request_id, one in pending.items():
        (output,) = one.answer().outputs
        reason: Any = output.finish_reason.value if output.finish_reason else None
        chunk = Chunk(0, output.text, (), None, reason)
        chunks = AnswerParser(formats[request_id]).parse(chunk, [(output.text, 0)])
        found.append(_joined(chunks, is_cut=reason == "length"))
    return found


def _joined(chunks: Iterable[Chunk], *, is_cut: bool) -> Answered:
    text, calls = "", []
    for chunk in chunks:
        text += chunk.text
        for delta in chunk.tool_calls:
            if delta.name is not None:
                calls.append([delta.name, ""])
            else:
                calls[delta.index][1] += delta.arguments
    return Answered(text, tuple((name, arguments) for name, arguments in calls), is_cut)


def parses(task: Task, answered: Answered) -> bool:
    """Whether all that was begun as a call is one."""
    try:
        made = [(name, json.loads(arguments)) for name, arguments in answered.calls]
    except ValueError:
        return False
    is_clean = not any(mark in answered.text for mark in MARKS)
    return is_clean and all(name in task.tools and _fits(name, given) for name, given in made)


def _fits(name: str, given: Any) -> bool:
    schema = TOOLS[name]["function"]["parameters"]
    return isinstance(given, dict) and set(schema["required"]) <= set(given) <= set(
        schema["properties"]
    )


def is_right(task: Task, answered: Answered) -> bool:
    """Whether the calls are those of the task, in any order; texts in any case."""
    if not parses(task, answered):
        return False
    made = [(name, json.loads(arguments)) for name, arguments in answered.calls]
    return sorted(map(_key, made)) == sorted(map(_key, task.calls))


def _key(call: tuple[str, dict[str, Any]]) -> str:
    name, arguments = call
    shown = {
        key: value.strip().lower() if isinstance(value, str) else value
        for key, value in arguments.items()
    }
    return f"{name} {json.dumps(shown, sort_keys=True)}".replace(".0", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, default=find_model())
    parser.add_argument("--wrong", action="store_true", help="show the answers that are not right")
    given = parser.parse_args()
    if given.model is None:
        raise SystemExit(f"there is no model: {INSTALL}")
    options = {"dtype": "f32", "kv_cache_memory": 512 << 20, "generation_config": "ignore"}
    opened = open_model(given.model, "openvino", make_config(options))
    print(f"{given.model.name}: form of calls {opened.tool_format or 'none'}")
    with_calls = [task for task in TASKS if task.calls]
    for mode, tasks in (("auto", TASKS), ("required", with_calls)):
        answers = ask(opened, tasks, mode)
        pairs = list(zip(tasks, answers, strict=True))
        num_parsed = sum(parses(*pair) for pair in pairs)
        num_right = sum(is_right(*pair) for pair in pairs)
        num_called = sum(bool(one.calls) for one in answers)
        print(
            f"{mode}: {len(tasks)} tasks, {num_called} with calls; parse "
            f"{num_parsed / len(tasks):.0%}, right {num_right / len(tasks):.0%}"
        )
        for task, answered in pairs:
            if given.wrong and not is_right(task, answered):
                print(f"  {task.says}\n    {answered.calls or answered.text!r}")
    opened.engine.close()


if __name__ == "__main__":
    main()
