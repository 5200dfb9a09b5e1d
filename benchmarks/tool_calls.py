"""How well a model calls tools: `python -m benchmarks.tool_calls [MODEL]`, by default the real
small model of the examples.

Sixty tasks (`tool_tasks`), each a chat with `tool_choice` "auto", at temperature 0, and those with
a call again with "required".  Prints the share of answers whose calls parse: known names, arguments
that are JSON and follow the schema, no piece of a call left in the text; the share that is right;
and the share of which a stream, parsed step by step, gives the same as the whole.

`--forms` then forces the calls into the form of each trained format, by its grammar: the model was
not trained on most of them, but each answer has to parse.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from benchmarks.tool_tasks import TASKS, TOOLS, Task
from examples.smollm2 import INSTALL, find_model
from mindspore_serving.core.llm_messages import Chunk, Generate, ToolChoice
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.chat.tool_formats import HARMONY, TOOL_FORMATS
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.loader import OpenedModel, open_model
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.processing.answer_format import (
    AnswerFormat,
    AnswerParser,
    to_answer_format,
)
from mindspore_serving.llm.processing.processor import Processor

MAX_TOKENS = 128
MARKS = ("<tool_call>", "</tool_call>", '"arguments"', '"parameters"')


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer: its text and its calls, each a name and the text of its arguments."""

    text: str
    calls: tuple[tuple[str, str], ...]


def ask(
    opened: OpenedModel, tasks: Sequence[Task], mode: Any, form: str | None = None
) -> tuple[list[Answered], int]:
    """The answers to `tasks`, in one batch, and how many a stream gives the same.

    With `form` the calls are in that format, not in the model's own.
    """
    processor = Processor(opened.tokenizer, opened.chat_template, opened.card())
    engine, formats = opened.engine, {}
    pieces: dict[str, list[tuple[str, Any]]] = {}
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
        if form is not None:
            answer_format = to_answer_format(
                request,
                structs.replace(
                    opened.card(),
                    tool_format=form,
                    reasoning_format=HARMONY if form == HARMONY else "",
                ),
            )
            grammar = processor.grammar(answer_format.grammar)
            options = {**prepared.options, "grammar": grammar}
            prepared = replace(prepared, answer_format=answer_format, options=options)
        prepared.add_to(engine, str(index))
        formats[str(index)] = prepared.answer_format
        pieces[str(index)] = []
    while engine.has_work:
        for request_id, generated in engine.step():
            reason: Any = generated.finish_reason.value if generated.finish_reason else None
            pieces[request_id].append((generated.text, reason))
    found, num_same = [], 0
    for request_id, streamed in pieces.items():
        text, reason = "".join(text for text, _ in streamed), streamed[-1][1]
        whole = _read(formats[request_id], [(text, reason)])
        num_same += _read(formats[request_id], streamed) == whole
        found.append(whole)
    return found, num_same


def _read(answer_format: AnswerFormat, pieces: Iterable[tuple[str, Any]]) -> Answered:
    """An answer that comes in `pieces`, each with the reason if it is the last."""
    parser = AnswerParser(answer_format)
    return _joined(
        chunk
        for text, reason in pieces
        for chunk in parser.parse(Chunk(0, text, (), None, reason), [(text, 0)])
    )


def _joined(chunks: Iterable[Chunk]) -> Answered:
    """The answer of `chunks`.  Raises ValueError for a call whose index is out of order."""
    text, calls = "", []
    for chunk in chunks:
        text += chunk.text
        for delta in chunk.tool_calls:
            if delta.index != len(calls) - (delta.name is None):
                raise ValueError(f"a part of call {delta.index} behind {len(calls)} calls")
            if delta.name is not None:
                calls.append([delta.name, ""])
            else:
                calls[-1][1] += delta.arguments
    return Answered(text, tuple((name, arguments) for name, arguments in calls))


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


def report(
    name: str, tasks: Sequence[Task], answers: list[Answered], num_same: int, *, shows_wrong: bool
) -> None:
    pairs = list(zip(tasks, answers, strict=True))
    shares = {
        "parse": sum(parses(*pair) for pair in pairs),
        "right": sum(is_right(*pair) for pair in pairs),
        "streamed the same": num_same,
    }
    shown = ", ".join(f"{what} {count / len(tasks):.0%}" for what, count in shares.items())
    num_called = sum(bool(answered.calls) for answered in answers)
    print(f"{name}: {len(tasks)} tasks, {num_called} with calls; {shown}", flush=True)
    for task, answered in pairs:
        if shows_wrong and not is_right(task, answered):
            print(f"  {task.says}\n    {answered.calls or answered.text!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, default=find_model())
    parser.add_argument(
        "--forms", nargs="*", help="force the calls into each form too, or into these"
    )
    parser.add_argument("--tasks", type=int, default=len(TASKS), help="only the first of the tasks")
    parser.add_argument("--wrong", action="store_true", help="show the answers that are not right")
    given = parser.parse_args()
    if given.model is None:
        raise SystemExit(f"there is no model: {INSTALL}")
    options = {"dtype": "f32", "kv_cache_memory": 512 << 20, "generation_config": "ignore"}
    opened = open_model(given.model, "openvino", make_config(options))
    print(f"{given.model.name}: form of calls {opened.tool_format or 'none'}")
    tasks = TASKS[: given.tasks]
    with_calls = [task for task in tasks if task.calls]
    report("auto", tasks, *ask(opened, tasks, "auto"), shows_wrong=given.wrong)
    report("required", with_calls, *ask(opened, with_calls, "required"), shows_wrong=given.wrong)
    forms = () if given.forms is None else given.forms or TOOL_FORMATS
    for form in forms:
        if form not in ("", opened.tool_format):
            answers = ask(opened, with_calls, "required", form)
            report(f"required, {form}", with_calls, *answers, shows_wrong=given.wrong)
    opened.engine.close()


if __name__ == "__main__":
    main()
