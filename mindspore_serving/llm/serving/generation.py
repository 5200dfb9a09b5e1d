"""A request in flight: its commands to the engine, and events made of the outputs."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mindspore_serving.core.llm_messages import (
    Chunk,
    Event,
    Finished,
    Generate,
    PromptScored,
    Started,
)
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.reading_messages import Embed, Embedded, Score, Scored
from mindspore_serving.core.sampling_params import Generated, join
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.engine.engine import PROMPT
from mindspore_serving.llm.engine.labels import Labels
from mindspore_serving.llm.engine.prompt_images import PromptImages
from mindspore_serving.llm.engine.stats import FirstStep
from mindspore_serving.llm.engines.base import LanguageEngine
from mindspore_serving.llm.images.reader import to_arrays
from mindspore_serving.llm.processing.answer_format import AnswerFormat, AnswerParser
from mindspore_serving.llm.processing.output_processor import OutputProcessor
from mindspore_serving.llm.processing.prepared import PreparedPrompt, PreparedTexts
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.serving.recording import GenerationRecorder, Timeline, Timing
from mindspore_serving.llm.step import Vectors

Command = Callable[[Any], Any]


class GenerationEvents:
    """Makes events of the outputs: at once, or at the end if the request is no stream."""

    def __init__(
        self,
        request_id: str,
        request: Generate,
        outputs: OutputProcessor,
        recorder: GenerationRecorder,
        timeline: Timeline | None = None,
    ) -> None:
        self.request_ids = (request_id,)
        self._request = request
        self._outputs = outputs
        self.num_open = request.params.n  # completions that have not ended
        self._parts: dict[int, list[Generated]] = {}
        self._format: AnswerFormat | None = None
        self._parsers: dict[int, AnswerParser] = {}
        self._timeline = timeline or Timeline()
        self._timing = Timing(recorder, self._timeline)
        self.prompt: Sequence[int] = ()  # if another worker may compute it
        self.images: PromptImages | None = None  # of the prompt
        self.num_computed = 0  # tokens of it that another worker has computed

    @property
    def is_done(self) -> bool:
        """True if all completions have ended."""
        return self.num_open == 0

    def prepare(
        self, request: Generate, processor: Processor, read: PreparedPrompt | None = None
    ) -> list[tuple[str, Command]]:
        """Return the commands to the engine, by request id.  Raises ServingError.

        `read` is what a child process has read of `request`, None if none has.  Called on a thread
        of the preparation.
        """
        prepared = processor.complete(request, read) if read else processor.prepare(request)
        if prepared.params.seed is None:
            params = replace(prepared.params, seed=secrets.randbits(63))
            prepared = replace(prepared, params=params)
        if prepared.answer_format.is_parsed:
            self._format = prepared.answer_format
        ids, request_id = prepared.prompt_ids, self.request_ids[0]
        self.prompt = ids if prepared.params.prompt_logprobs is None else ()
        self.images = prepared.options.get("images")
        prompt = self._outputs.prompt(ids) if request.has_prompt_tokens else None

        def add(engine: LanguageEngine) -> Any:
            prepared.add_to(engine, request_id)
            waited = time.monotonic() - self._timeline.ready
            seed, is_capped = prepared.params.seed or 0, prepared.is_capped
            return [(request_id, Started(len(ids), seed, prompt, waited, is_capped))]

        self._timeline.ready = time.monotonic()
        return [(request_id, add)]

    def take(self, request_id: str, output: Started | FirstStep | Generated) -> list[Event]:
        """Return the events that `output` makes."""
        line = self._timeline
        if isinstance(output, Started):
            line.num_prompt_tokens = output.num_prompt_tokens
            return [output]
        if isinstance(output, FirstStep):
            line.first_step = output.at
            self._timing.begin()
            return []
        if output.index == PROMPT:
            return [PromptScored(self._outputs.tokens(output.token_ids, output.logprobs))]
        self._timing.add(output.index, len(output.token_ids), output.finish_reason)
        line.num_generated_tokens += len(output.token_ids)
        num_cached = output.num_cached_tokens - self.num_computed
        line.num_cached_tokens = max(line.num_cached_tokens, num_cached)
        if output.finish_reason is not None:
            self.num_open -= 1
            line.finish_reasons.append(output.finish_reason.value)
            line.num_draft_tokens += output.num_draft_tokens
            line.num_accepted_tokens += output.num_accepted_tokens
        events: list[Event] = [*self._chunks(output)]
        if self.is_done:
            self._timing.end()
            events.append(self._finished())
        return events

    def _chunks(self, output: Generated) -> list[Chunk]:
        parts = self._parts.setdefault(output.index, [])
        parts.append(output)
        if not self._request.is_stream and output.finish_reason is None:
            return []
        del self._parts[output.index]
        whole, has_tokens = join(parts), self._request.has_tokens
        chunk = self._outputs.chunk(whole, has_tokens=has_tokens)
        if self._format is not None:
            return self._parse(chunk, parts, self._format)
        is_empty = not whole.text and whole.finish_reason is None and not has_tokens
        return [] if is_empty else [chunk]

    def _parse(
        self, chunk: Chunk, parts: Sequence[Generated], answer_format: AnswerFormat
    ) -> list[Chunk]:
        if chunk.index not in self._parsers:
            self._parsers[chunk.index] = AnswerParser(answer_format)
        texts = [(part.text, len(part.token_ids)) for part in parts]
        return self._parsers[chunk.index].parse(chunk, texts)

    def _finished(self) -> Finished:
        line = self._timeline
        return Finished(
            line.num_prompt_tokens,
            line.num_cached_tokens,
            line.num_generated_tokens,
            line.queue_seconds,
            sum(parser.num_reasoning_tokens for parser in self._parsers.values()),
            line.num_draft_tokens,
            line.num_accepted_tokens,
        )


class ReadingEvents:
    """Collects the vectors of a request's texts, to embed or to score them."""

    def __init__(self, request_id: str, request: Embed | Score, card: ModelCard) -> None:
        count = request.count if isinstance(request, Embed) else len(request.texts)
        self.request_ids = tuple(f"{request_id}/{index}" for index in range(count))
        self._is_embedding = isinstance(request, Embed)
        self._labels = Labels(card.labels, card.problem)
        self._lengths: tuple[int, ...] = ()
        self._vectors: dict[str, Vectors] = {}

    @property
    def is_done(self) -> bool:
        """True if all texts have their vectors."""
        return len(self._vectors) == len(self.request_ids)

    def prepare(
        self, request: Embed | Score, processor: Processor, read: PreparedTexts | None = None
    ) -> list[tuple[str, Command]]:
        """Return the commands to the engine, by request id.  Raises ServingError.

        `read` is what a child process has read of `request`, None if none has.  Called on a thread
        of the preparation.
        """
        if not self.request_ids:
            raise InvalidInputs("there is no text, expected at least one")
        prompts = read or processor.read_texts(request)
        images = prompts.images
        self._lengths = tuple(
            images[index].count if index in images else len(prompt)
            for index, prompt in enumerate(prompts.ids)
        )
        options: list[dict[str, Any]] = [{} for _ in prompts.ids]
        if prompts.types:
            options = [{"types": types} for types in prompts.types]
        elif isinstance(request, Embed) and request.scale != "model":
            options = [{"normalizes": request.scale == "unit"} for _ in prompts.ids]
        for index, image in images.items():
            options[index]["image"] = to_arrays(image)
        for index, seen in enumerate(prompts.images_in_texts):
            if seen:
                options[index]["images"] = processor.to_images(prompts.ids[index], seen)
        rows = zip(self.request_ids, prompts.ids, options, strict=True)
        return [(request_id, _adding(request_id, ids, more)) for request_id, ids, more in rows]

    def take(self, request_id: str, vector: Vectors) -> list[Event]:
        self._vectors[request_id] = vector
        if not self.is_done:
            return []
        rows = [self._vectors[request_id] for request_id in self.request_ids]
        vectors = np.ascontiguousarray(np.stack(rows), "<f4")
        if self._is_embedding:
            return [Embedded(vectors.tobytes(), vectors.shape[1], self._lengths)]
        scores = np.ascontiguousarray(self._labels.scores(vectors), "<f4")
        return [Scored(vectors.tobytes(), scores.tobytes(), vectors.shape[1], self._lengths)]


def _adding(request_id: str, ids: list[int], options: Mapping[str, Any]) -> Command:
    return lambda engine: engine.add_embedding(request_id, ids, **options)
