"""Text generation in one process, without a server.

    with LLM("/models/qwen", quantization="int8") as llm:
        for answer in llm.generate(["Hello,", "Once upon"], SamplingParams(max_tokens=32)):
            print(answer.outputs[0].text)

A shell around the engine: it knows prompts and answers, and nothing of how they are computed.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias

from mindspore_serving import log
from mindspore_serving.core.llm_messages import Generate, Grammar
from mindspore_serving.core.sampling_params import FinishReason, SamplingParams, TokenLogprob
from mindspore_serving.errors import InvalidInputs, ServingError
from mindspore_serving.hub.resolve import resolve, resolve_options
from mindspore_serving.llm.beam_search import (
    BeamSearchOutput,
    BeamSearchParams,
    BeamSearchSequence,
    Search,
    search,
)
from mindspore_serving.llm.catalog import AUTO
from mindspore_serving.llm.engine.encoder import GENERATES_NOTHING, EncoderEngine
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.engine.request import to_token_ids
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.loader import open_ours
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.outputs import Answer, Completion, PendingAnswer
from mindspore_serving.llm.processing.pinned_prompts import pin_prompts
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.progress import progress
from mindspore_serving.llm.step import Vectors

__all__ = ["LLM", "Answer", "Completion"]

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[int]
Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A language model, loaded and ready.

    Args:
        path: the model's directory: config.json, *.safetensors or *.ckpt, tokenizer.json (without
            it: token ids only); or a GGUF file, or a directory with one; or its name, as
            "Qwen/Qwen3-0.6B".  An encoder (such as BERT) embeds, and does not generate.
        runtime: what computes: "auto" ("combined" for quantised GGUF files, else "openvino"), or a
            name of `catalog.RUNTIMES`.
        quantization: how weights are stored, by a name of the runtime; None: as in the checkpoint.
        options: those of `EngineConfig`.

    Raises StartError or InvalidInputs saying what cannot be used.  Used by one thread.
    """

    def __init__(
        self,
        path: str | Path,
        runtime: str = AUTO,
        quantization: str | None = None,
        **options: Any,
    ) -> None:
        config = make_config({"quantization": quantization, **resolve_options(options)})
        opened, engine = open_ours(resolve(str(path)), runtime, config)
        self.tokenizer = opened.tokenizer
        self._card = card = opened.card()
        self._processor = Processor(
            opened.tokenizer,
            opened.chat_template,
            card,
            opened.find_adapter,
            images=opened.images,
            sounds=opened.sounds,
            tower=opened.tower,
            limits=config,
        )
        pin_prompts(opened, self._processor)
        self._default = SamplingParams(**card.defaults)  # type: ignore[arg-type]
        self._num_requests = 0
        self._engine: Engine | EncoderEngine | None = engine
        log.info("%s", opened.describe())
        if sys.stderr.isatty():
            print(opened.describe(), file=sys.stderr)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        use_tqdm: bool = True,
        adapter: str | None = None,
        *,
        grammar: Grammar | None = None,
        source_language: str = "",
        target_language: str = "",
    ) -> list[Answer]:
        """Generate the answers to `prompts`, in their order.

        Args:
            prompts: a text or a list of token ids, or a list of these.
            params: for all prompts, or one for each; None: the model's default sampling.
            use_tqdm: show progress, if stderr is a terminal.
            adapter: the name of one of the `adapters`; None: the model without adapter.
            grammar: the form of each answer.
            source_language: code of the language of prompts, of models with tokens of languages
                (NLLB); "": that of the tokenizer.
            target_language: the same of answers; "": that of generation_config.json.

        Raises InvalidInputs naming the prompt that cannot be used; then none is computed.  If the
        model failed, the answer's `finish_reason` is ERROR and its `stop_reason` says why.
        """
        inputs = [{"prompt": prompt} for prompt in list_prompts(prompts)]
        options = {"adapter": adapter or "", "grammar": grammar}
        options |= {"source_language": source_language, "target_language": target_language}
        return self._generate("prompts", inputs, params, use_tqdm, options)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        use_tqdm: bool = True,
        adapter: str | None = None,
        *,
        grammar: Grammar | None = None,
        **template_options: Any,
    ) -> list[Answer]:
        """Generate the assistant's answers to a conversation, or to each of a list of them.

        A message is a mapping with "role" and "content", which may be a list of parts as OpenAI has
        them: texts, and images if the model takes them.  `template_options` are variables of the
        model's chat template: `tools`, `documents`, `enable_thinking`; `add_generation_prompt`; and
        `continue_final_message`, with which the answer continues the last message.  Raises as
        `generate` does, and InvalidInputs if the model has no chat template.
        """
        is_single = bool(messages) and isinstance(messages[0], Mapping)
        chats: Any = [messages] if is_single else messages
        options = {
            "adapter": adapter or "",
            "grammar": grammar,
            "tools": template_options.pop("tools", None),
            "template_options": template_options,
        }
        inputs = [{"messages": chat} for chat in chats]
        return self._generate("messages", inputs, params, use_tqdm, options)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        adapter: str | None = None,
    ) -> list[BeamSearchOutput]:
        """Search the likeliest answers to each of `prompts`.

        Raises as `generate` does, and ServingError if the model fails.
        """
        if self._card.max_prompt_len:
            raise InvalidInputs(
                "beam search follows prompts of decoders; an encoder reads this one"
            )
        searches, limit = [], self._card.max_model_len
        listed = list_prompts(prompts)
        for index, prompt in enumerate(listed):
            with name_input(f"prompts[{index}]", len(listed)):
                ids = self._processor.encode(prompt)
                if not 0 < len(ids) <= limit - params.max_tokens:
                    raise InvalidInputs(
                        f"the prompt has {len(ids)} tokens, expected 1 to {limit} less "
                        f"{params.max_tokens}, which max_tokens leaves to answers"
                    )
            searches.append(Search(list(ids), params, self._card.eos_ids))

        def likeliest(texts: Sequence[list[int]], count: int) -> list[Sequence[TokenLogprob]]:
            sampling = SamplingParams(max_tokens=1, temperature=0.0, logprobs=count)
            answers = self.generate(texts, sampling, use_tqdm=False, adapter=adapter)
            return [_likeliest(answer) for answer in answers]

        search(searches, likeliest)
        return [self._to_output(each) for each in searches]

    def embed(self, prompts: Prompt | Sequence[Prompt]) -> Vectors:
        """Return a vector for each prompt, float32 [number of prompts, size of a vector].

        For a model that generates it is the final hidden state of the prompt's last token, scaled
        to length 1.  For an encoder it is pooled as its modules.json says, or else the mean of all
        tokens, scaled.  Raises InvalidInputs naming the prompt, or if the runtime has no
        embeddings.
        """
        engine, ids = self._any_engine(), []
        embedder = engine.embedder
        listed = list_prompts(prompts)
        encode, texts = self._processor.encode, self._processor.texts
        for index, prompt in enumerate(listed):
            with name_input(f"prompts[{index}]", len(listed)):
                ids.append(embedder.check(encode(texts.instructed(prompt))))
        return embedder.embed(ids)

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Load the LoRA adapter in the directory `path` as `name`, in place of one of that name.

        Raises InvalidInputs saying what does not fit, Overloaded for more than `max_loras`.
        """
        adapters = self._open_engine().adapters
        adapters.add(name, adapters.read(name, path))

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter and free its memory.  Raises NotFound."""
        self._open_engine().adapters.remove(name)

    def stats(self) -> EngineStats:
        """Return the engine's counters: cache, preemptions, tokens."""
        return self._any_engine().stats()

    def close(self) -> None:
        """Free the model's memory.  A second call does nothing."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _generate(
        self,
        name: str,
        inputs: Sequence[Mapping[str, Any]],
        params: Params,
        shows_progress: bool,
        options: Mapping[str, Any],
    ) -> list[Answer]:
        engine, processor = self._open_engine(), self._processor
        processor.adapter(options["adapter"])  # an error here concerns no single prompt
        processor.grammar(options["grammar"])
        pending: dict[str, PendingAnswer] = {}
        try:
            each = list_params(self._default if params is None else params, len(inputs))
            for index, (sampling, fields) in enumerate(zip(each, inputs, strict=True)):
                with name_input(f"{name}[{index}]", len(inputs)):
                    request = Generate(params=sampling, **fields, **options)
                    prepared = processor.prepare(request)
                    prepared.add_to(engine, request_id := self._next_id())
                pending[request_id] = PendingAnswer(prepared.text, prepared.prompt_ids, sampling.n)
            count = range(len(inputs) if shows_progress else 0)
            _run(engine, pending, progress(count, "generate") if count else iter(()))
        finally:
            _abort_all(engine, pending)
        return [answer.answer() for answer in pending.values()]

    def _to_output(self, search: Search) -> BeamSearchOutput:
        answers = [(search.prompt + tokens, total) for tokens, total in search.best()]
        decode = self.tokenizer.decode if self.tokenizer else lambda _: ""
        return BeamSearchOutput(
            tuple(BeamSearchSequence(tuple(ids), total, decode(ids)) for ids, total in answers)
        )

    def _next_id(self) -> str:
        self._num_requests += 1
        return str(self._num_requests)

    def _open_engine(self) -> Engine:
        engine = self._any_engine()
        if not engine.can_generate:
            raise InvalidInputs(GENERATES_NOTHING)
        return engine

    def _any_engine(self) -> Engine | EncoderEngine:
        if self._engine is None:
            raise ServingError("this LLM is closed")
        return self._engine


def _run(engine: Engine, pending: dict[str, PendingAnswer], bar: Iterator[int]) -> None:
    next(bar, None)
    while engine.has_work:
        for request_id, generated in engine.step():
            if pending[request_id].take(generated):
                next(bar, None)


def _likeliest(answer: Answer) -> Sequence[TokenLogprob]:
    """Return the likeliest next tokens of an answer of one token."""
    (output,) = answer.outputs
    if output.logprobs is None or output.finish_reason is FinishReason.ERROR:
        raise ServingError(f"a beam cannot be continued: {output.stop_reason}")
    return output.logprobs[0][1:]  # the first is the token's own


def _abort_all(engine: Engine, pending: dict[str, PendingAnswer]) -> None:
    """Abort all pending requests, so that the engine can be used after an error."""
    for request_id in pending:
        engine.abort(request_id)
    if engine.has_work:
        engine.step()


def list_prompts(prompts: Prompt | Sequence[Prompt]) -> list[str | list[int]]:
    """Return one prompt, or several, as a list of texts and lists of token ids."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise InvalidInputs(
            f"prompts is {prompts!r}, expected a text, a list of token ids, or a list of these"
        )
    listed: list[Any] = list(prompts)
    if listed and isinstance(listed[0], Integral):
        listed = [listed]
    checked = []
    for index, prompt in enumerate(listed):
        with name_input(f"prompts[{index}]", len(listed)):
            checked.append(prompt if isinstance(prompt, str) else to_token_ids(prompt))
    return checked


def list_params(
    params: SamplingParams | Sequence[SamplingParams], count: int
) -> list[SamplingParams]:
    """Return parameters for each of `count` prompts.  Raises InvalidInputs for another number."""
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise InvalidInputs(f"{len(params)} params for {count} prompts, expected one or as many")
    return list(params)


@contextmanager
def name_input(name: str, count: int) -> Iterator[None]:
    """Name the input that an InvalidInputs is about, if there are several."""
    try:
        yield
    except InvalidInputs as error:
        if count == 1:
            raise
        raise InvalidInputs(f"{name}: {error}") from None
