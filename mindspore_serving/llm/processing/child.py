"""Child process that prepares requests to one model beside its worker, and that can be killed.

Run as `python -m mindspore_serving.llm.processing.child`.  Loads tokenizer and chat template, but
no weights.
"""

import os
import socket
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from mindspore_serving import log
from mindspore_serving.core.llm_messages import (
    Detokenize,
    Detokenized,
    Generate,
    LLMRequest,
    Refused,
    RequestRefused,
    Tokenize,
    encode_event,
)
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.reading_messages import Embed, Score
from mindspore_serving.errors import ServingError
from mindspore_serving.isolation.fork_server import Role, answer_jobs, memory, run
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.checkpoint.gguf.projector import choose_projector
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.grammar.deep_stack import call_with_deep_stack
from mindspore_serving.llm.grammar.source import is_large
from mindspore_serving.llm.images.reader import open_reader
from mindspore_serving.llm.images.sound_reader import open_sound_reader
from mindspore_serving.llm.processing.output_processor import OutputProcessor
from mindspore_serving.llm.processing.prepared import (
    PreparedEvent,
    PreparedPrompt,
    PreparedTexts,
    decode_job,
    encode_result,
    to_failed,
)
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

MODULE = "mindspore_serving.llm.processing.child"
PREPARE = "prepare"  # the role
# The worker builds an accepted grammar again, and follows it.
MAX_BUILD_SECONDS = 1.0  # of CPU; a hundred tools of ten parameters take a tenth of it
MAX_BUILD_MEMORY = 32 << 20


class ProcessorSetup(msgspec.Struct, frozen=True):
    """Model that a fork server loads the processor of."""

    directory: str
    card: ModelCard
    config: dict[str, Any]  # fields of `EngineConfig` that limit files


def load(setup: bytes) -> Mapping[str, Role]:
    """Load the processor of a model; return the roles of the processes to fork."""
    decoded = msgspec.msgpack.decode(setup, type=ProcessorSetup)
    directory = Path(decoded.directory)
    tokenizer = Tokenizer.open(directory)
    template = ChatTemplate.open(directory, tokenizer.special_tokens)
    images, sounds, limits = None, None, EngineConfig(**decoded.config)
    choose_projector(directory, limits.mmproj)
    if decoded.card.takes_images or decoded.card.takes_sounds:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it warns that PyTorch is missing
        # Processors do not need PyTorch, whose import takes seconds and 400 MB.
        sys.modules["torch"] = None  # type: ignore[assignment]
        images = open_reader(directory, tokenizer, limits)
        sounds = open_sound_reader(directory, tokenizer, limits)
    processor = Processor(
        tokenizer,
        template,
        decoded.card,
        is_trusted=False,
        images=images,
        sounds=sounds,
        limits=limits,
    )
    try:
        processor.warm()
    except ServingError as error:  # the same for each request with a grammar
        log.warning("grammars cannot be used: %s", error)
    answer = partial(_answer, processor, OutputProcessor(tokenizer))

    def prepare(stream: socket.socket) -> None:
        answer_jobs(stream, answer)

    return {PREPARE: prepare}


def _answer(processor: Processor, outputs: OutputProcessor, job: bytes) -> bytes:
    request, request_id = decode_job(job)
    with log.of_request(request_id):
        return _guarded(processor, outputs, request)


def _guarded(processor: Processor, outputs: OutputProcessor, request: LLMRequest) -> bytes:
    try:
        return encode_result(_prepare(processor, outputs, request))
    except ServingError as error:
        return encode_result(to_failed(error))
    except MemoryError:
        raise
    except Exception:
        log.error("preparing a request", exc_info=True)
        failure = ServingError("the request could not be prepared; see the log")
        return encode_result(to_failed(failure))


def _prepare(
    processor: Processor, outputs: OutputProcessor, request: LLMRequest
) -> PreparedPrompt | PreparedTexts | PreparedEvent:
    if isinstance(request, Generate):
        prompt = processor.read(request)
        _try_grammar(processor, prompt)
        return prompt
    if isinstance(request, Embed | Score):
        return processor.read_texts(request)
    if isinstance(request, Tokenize):
        return PreparedEvent(msgspec.Raw(encode_event(processor.tokenize(request, outputs))))
    assert isinstance(request, Detokenize)
    return PreparedEvent(msgspec.Raw(encode_event(Detokenized(processor.detokenize(request)))))


def _try_grammar(processor: Processor, prompt: PreparedPrompt) -> None:
    """Raise RequestRefused if the grammar costs too much to build or to follow in the worker."""
    grammar = prompt.answer_format.grammar
    if grammar is None:
        return
    before = call_with_deep_stack(memory, is_slow=is_large(grammar))  # with that stack
    began = time.process_time()
    compiled = processor.grammar(grammar)
    seconds, growth = time.process_time() - began, memory() - before
    assert compiled is not None
    problem = compiled.find_slow_step()
    if seconds > MAX_BUILD_SECONDS or growth > MAX_BUILD_MEMORY:
        problem = "compiling it takes too long, or too much memory"
    if problem:
        text = f"the {grammar.kind} cannot be used: {problem}"
        raise RequestRefused(Refused("grammar", text))


if __name__ == "__main__":
    run(load)
