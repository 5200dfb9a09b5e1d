"""The worker's language model: asks of front ends, and stages of methods, over one `Answering`.

Everything here runs on the worker's thread.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mindspore_serving.core.declaration import LanguageSpec
from mindspore_serving.core.generation import SamplingParams
from mindspore_serving.core.llm_messages import (
    Chunk,
    Event,
    Finished,
    Generate,
    Grammar,
    Refused,
    decode_request,
    encode_events,
)
from mindspore_serving.core.value import Value
from mindspore_serving.errors import (
    DeadlineExceeded,
    InvalidInputs,
    Overloaded,
    ServingError,
    StageFailed,
    StartError,
)
from mindspore_serving.execution.executor import Executor
from mindspore_serving.execution.job import Job
from mindspore_serving.ipc.messages import Setup
from mindspore_serving.llm.loader import make_config, open_model
from mindspore_serving.llm.models import is_encoder
from mindspore_serving.llm.serving.async_engine import Answering
from mindspore_serving.llm.tokenization.tokenizer import read_json
from mindspore_serving.servable.builtins import json_object

MOST_WAITING = 1024  # requests, unless the operator says otherwise
MOST_PROMPTS = 32 * MOST_WAITING  # of an encoder: a request may have thousands, and each is little
MOST_WAITING_TOKENS = 1 << 20  # that they have together
SWITCH_SECONDS = 0.0005  # how long another thread may hold up the step loop


@dataclass(frozen=True, slots=True)
class Sent:
    """Events for the front end that asked; `error` in their place if it failed."""

    item_id: int
    events: bytes
    error: ServingError | None
    is_last: bool


class LanguageHost:
    """Serves one model.  `sent` is what the worker is to send; `executor` is set later."""

    def __init__(self, answering: Answering, params: SamplingParams) -> None:
        self.executor: Executor
        self.sent: list[Sent] = []
        self.card = answering.card
        self._answering = answering
        self._params = params
        self._asked: dict[int, list[str]] = {}  # part or item id -> asks under way
        self._jobs: dict[str, Job] = {}

    @property
    def has_work(self) -> bool:
        return self._answering.num_open > 0

    def numbers(self) -> dict[str, int]:
        """The engine's newest numbers; empty before its first step."""
        stats = self._answering.stats
        return {} if stats is None else msgspec.to_builtins(stats)

    def accept(self, item_id: int, method: str, body: bytes | memoryview) -> None:
        """Answer an ask of a front end.  Raises InvalidInputs if it is none."""
        try:
            ask = decode_request(method, body)
        except msgspec.DecodeError as error:
            raise InvalidInputs(f"the request cannot be read: {error}") from None

        def sink(events: list[Event] | ServingError, is_last: bool) -> None:
            if is_last:
                del self._asked[item_id]
            error = events if isinstance(events, ServingError) else None
            encoded = b"" if isinstance(events, ServingError) else encode_events(events)
            self.sent.append(Sent(item_id, encoded, error, is_last))

        self._asked[item_id] = [self._answering.accept(ask, sink)]

    def start(self, jobs: list[Job]) -> None:
        """The stage: each job's prompt goes to the model, to come back by the executor."""
        for job in jobs:
            stage = job.part.program.method.stages[job.position]
            try:
                ask = self._to_ask([job.values[slot] for slot in stage.inputs])
            except ServingError as error:
                self.executor.resume([job], [error])
                continue
            ask = msgspec.structs.replace(ask, is_stream=job.is_to_stream)
            self._begin(job, ask, len(stage.outputs))

    def cancel(self, part_id: int) -> None:
        """Nobody waits for a part, or for an ask of a front end."""
        for ask_id in self._asked.pop(part_id, ()):
            self._answering.cancel(ask_id)
            job = self._jobs.pop(ask_id, None)
            error = DeadlineExceeded("the request was cancelled")
            if job is not None:
                self.executor.fail(job, error)
            else:
                self.sent.append(Sent(part_id, b"", error, is_last=True))  # the master counts on it

    def collect(self) -> None:
        """Take in what the step loop has made.  Raises RuntimeError if it broke."""
        self._answering.collect()

    def close(self) -> None:
        self._answering.close()

    def _begin(self, job: Job, ask: Generate, num_outputs: int) -> None:
        ask_id = ""

        def sink(events: list[Event] | ServingError, is_last: bool) -> None:
            if is_last:
                self._forget(job, ask_id)
            self._take(job, events, num_outputs)
            if not is_last and job.part.left == 0:  # a later stage has failed on a piece
                self._forget(job, ask_id)
                self._answering.cancel(ask_id)

        ask_id = self._answering.accept(ask, sink)
        self._jobs[ask_id] = job
        self._asked.setdefault(job.part.id, []).append(ask_id)

    def _forget(self, job: Job, ask_id: str) -> None:
        del self._jobs[ask_id]
        self._asked[job.part.id].remove(ask_id)
        if not self._asked[job.part.id]:
            del self._asked[job.part.id]

    def _take(self, job: Job, events: list[Event] | ServingError, num_outputs: int) -> None:
        if isinstance(events, ServingError):
            self.executor.fail(job, events)
            return
        for event in events:
            if isinstance(event, Refused):
                self.executor.fail(job, _to_error(event))
            elif isinstance(event, Chunk):
                if event.finish_reason == "error":
                    self.executor.fail(job, StageFailed(str(event.stop_reason)))
                    return
                outcome = (event.text, event.finish_reason or "")[:num_outputs]
                if job.is_to_stream:
                    self.executor.emit(job, outcome)
                else:
                    self.executor.resume([job], [outcome])
            elif isinstance(event, Finished) and job.is_to_stream:
                self.executor.end(job)

    def _to_ask(self, values: Sequence[Value]) -> Generate:
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


def open_language(spec: LanguageSpec, setup: Setup, wake: Any) -> LanguageHost:
    """Load the servable's language model and start its engine.  Raises StartError."""
    options = dict(spec.options)
    embeds_only = is_encoder(read_json(Path(spec.path) / "config.json"))
    options.setdefault("max_num_waiting", MOST_PROMPTS if embeds_only else MOST_WAITING)
    options.setdefault("max_num_waiting_tokens", MOST_WAITING_TOKENS)
    if "device" not in options and setup.device_type in ("cpu", "gpu"):
        number = f":{setup.device_id}" if setup.device_id else ""
        options["device"] = "cpu" if setup.device_type == "cpu" else f"cuda{number}"
    try:
        opened = open_model(spec.path, spec.runtime, make_config(options))
    except InvalidInputs as error:
        raise StartError(str(error)) from error
    sys.setswitchinterval(SWITCH_SECONDS)
    return LanguageHost(Answering(opened, wake), spec.params)


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
