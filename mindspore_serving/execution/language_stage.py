"""The worker's language model as a stage of methods: prompts of jobs in, texts out."""

from collections.abc import Sequence

import msgspec
import numpy as np

from mindspore_serving.core.generation import SamplingParams
from mindspore_serving.core.llm_messages import Chunk, Event, Finished, Generate, Grammar, Refused
from mindspore_serving.core.value import Value
from mindspore_serving.errors import (
    DeadlineExceeded,
    InvalidInputs,
    Overloaded,
    ServingError,
    StageFailed,
)
from mindspore_serving.execution.job import Item, Job, JobQueue
from mindspore_serving.llm.serving.async_engine import AsyncEngine
from mindspore_serving.servable.builtins import json_object


class LanguageStage:
    """One model for the executors of this worker.  `params` are how it samples what a request does
    not say.  Its methods are called on the executor's thread."""

    def __init__(self, engine: AsyncEngine, params: SamplingParams) -> None:
        self._engine = engine
        self._params = params

    def start(self, queue: JobQueue, jobs: list[Job]) -> None:
        """Give each job's prompt to the model; its texts come back to `queue`."""
        for job in jobs:
            stage = job.item.program.method.stages[job.position]
            try:
                request = self._to_request([job.values[slot] for slot in stage.inputs])
            except ServingError as error:
                queue.resume([job], [error])
                continue
            self._submit(queue, job, msgspec.structs.replace(request, is_stream=job.is_to_stream))

    def cancel(self, queue: JobQueue, item: Item) -> None:
        """Nobody waits for `item` any more."""
        generations, item.generations = item.generations, {}
        for request_id, job in generations.items():
            self._engine.cancel(request_id)
            queue.fail(job, DeadlineExceeded("the request was cancelled"))

    def _submit(self, queue: JobQueue, job: Job, request: Generate) -> None:
        request_id = ""

        def take(events: list[Event] | ServingError, is_last: bool) -> None:
            if request_id not in job.item.generations:
                return  # cancelled since
            if is_last:
                del job.item.generations[request_id]
            _put(queue, job, events)
            if not is_last and job.item.left == 0:  # a later stage has failed on a piece
                del job.item.generations[request_id]
                self._engine.cancel(request_id)

        def sink(events: list[Event] | ServingError, is_last: bool) -> None:
            queue.post(lambda: take(events, is_last))

        request_id = self._engine.accept(request, sink)
        job.item.generations[request_id] = job

    def _to_request(self, values: Sequence[Value]) -> Generate:
        given = json_object(values[1]) if len(values) > 1 else {}
        grammar = given.pop("grammar", None)
        known = msgspec.to_builtins(self._params)
        for name in given:
            if name not in known:
                raise InvalidInputs(f"parameter {name!r} does not exist; there are {list(known)}")
        if given.get("n", 1) != 1:
            raise InvalidInputs(f"n is {given['n']!r}, expected 1 in a stage")
        try:
            params = msgspec.convert({**known, **given}, SamplingParams)
            form = None if grammar is None else msgspec.convert(grammar, Grammar)
        except msgspec.ValidationError as error:
            raise InvalidInputs(f"the parameters cannot be used: {error}") from None
        return Generate(prompt=_read_prompt(values[0]), params=params, grammar=form)


def _put(queue: JobQueue, job: Job, events: list[Event] | ServingError) -> None:
    """What the model made of `job`, for the stages behind."""
    if isinstance(events, ServingError):
        queue.fail(job, events)
        return
    num_outputs = len(job.item.program.method.stages[job.position].outputs)
    for event in events:
        if isinstance(event, Refused):
            queue.fail(job, _to_error(event))
        elif isinstance(event, Chunk):
            if event.finish_reason == "error":
                queue.fail(job, StageFailed(str(event.stop_reason)))
                return
            outcome = (event.text, event.finish_reason or "")[:num_outputs]
            if job.is_to_stream:
                queue.emit(job, outcome)
            else:
                queue.resume([job], [outcome])
        elif isinstance(event, Finished) and job.is_to_stream:
            queue.end(job)


def _read_prompt(value: Value) -> str | list[int]:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1:
        ids: list[int] = value.tolist()
        return ids
    raise InvalidInputs("the prompt should be a text, or an array of token ids")


def _to_error(refused: Refused) -> ServingError:
    kind = Overloaded if refused.reason == "overloaded" else InvalidInputs
    return kind(refused.text)
