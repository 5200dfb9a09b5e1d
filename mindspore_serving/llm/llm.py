"""Text generation in one process, without a server:

    with LLM("/models/qwen", quantization="int8") as llm:
        for answer in llm.generate(["Hello,", "Once upon"], SamplingParams(max_tokens=32)):
            print(answer.outputs[0].text)

A shell around the engine: it knows prompts and answers, and nothing of how they are computed.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from mindspore_serving import log
from mindspore_serving.core.generation import SamplingParams
from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import InvalidInputs, ServingError
from mindspore_serving.llm.engine.encoder import GENERATES_NOTHING, EncoderEngine
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.engine.request import to_token_ids
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.grammar.compiler import CompiledGrammar, GrammarCompiler
from mindspore_serving.llm.loader import make_config, open_model
from mindspore_serving.llm.outputs import Answer, Collected, Completion
from mindspore_serving.llm.processing.prompts import (
    Params,
    Prompt,
    adapter_place,
    list_params,
    list_prompts,
    naming,
)
from mindspore_serving.llm.progress import progress
from mindspore_serving.llm.step import Vectors

__all__ = ["LLM", "Answer", "Completion"]

Message: TypeAlias = Mapping[str, Any]


class LLM:
    """A language model, loaded and ready.

    Args:
        path: the model's directory: config.json, *.safetensors or *.ckpt, tokenizer.json.  Without
            tokenizer.json only token ids can be given and are returned.
            One of an encoder (BERT and its like) embeds, and does not generate.
        runtime: what computes: "openvino" (CPUs), "torch", "mindspore", or "toy" for tests.
        quantization: how weights are stored, by a name of the runtime; None as they are.
        options: those of `EngineConfig`.

    Raises StartError or InvalidInputs saying what cannot be used.  Used by one thread.
    """

    def __init__(
        self,
        path: str | Path,
        runtime: str = "openvino",
        quantization: str | None = None,
        **options: Any,
    ) -> None:
        config = make_config({"quantization": quantization, **options})
        opened = open_model(path, runtime, config)
        self.tokenizer = opened.tokenizer
        self._chat_template = opened.chat_template
        self._default = SamplingParams(**opened.recommended)
        self._num_requests = 0
        self._compiler: GrammarCompiler | None = None  # once there was a grammar
        self._engine: Engine | EncoderEngine | None = opened.engine
        _announce(opened.describe())

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        use_tqdm: bool = True,
        adapter: str | None = None,
        *,
        grammar: Grammar | None = None,
    ) -> list[Answer]:
        """The answers to `prompts`, in their order.

        Args:
            prompts: a text or a list of token ids, or a list of such.
            params: for all prompts, or one for each; None is `SamplingParams()` with what the
                model's generation_config.json recommends.
            use_tqdm: show how far it is, where stderr is a terminal.
            adapter: the name of one of the `adapters`; None is the model as it is.
            grammar: what each answer must look like.

        Raises InvalidInputs naming the prompt that cannot be used; then none is computed.  Where
        the model failed, the answer's `finish_reason` is ERROR and its `stop_reason` says why.
        """
        options = {"adapter": self._place(adapter), "grammar": self._compile(grammar)}
        return self._generate(list_prompts(prompts), params, use_tqdm, self._encode, options)

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
        """The assistant's answers to a conversation, or to each of a list of them.

        A message is a mapping with "role" and "content".  `template_options` (`tools`,
        `enable_thinking`) go to the model's chat template.  Raises as `generate` does, and
        InvalidInputs if the model has no chat template.
        """
        options = {"adapter": self._place(adapter), "grammar": self._compile(grammar)}
        if self._chat_template is None:
            raise InvalidInputs("the model has no chat template; use generate")
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        chats: Any = [messages] if is_one else messages
        tools = template_options.pop("tools", None)
        texts = []
        for index, chat in enumerate(chats):
            with naming(f"messages[{index}]", len(chats)):
                text = self._chat_template.render(chat, tools=tools, options=template_options)
            texts.append(text)
        return self._generate(texts, params, use_tqdm, self._encode_chat, options)

    def embed(self, prompts: Prompt | Sequence[Prompt]) -> Vectors:
        """A vector for each prompt, float32 [number of prompts, size of a vector].

        Of a model that generates: the final hidden state of the prompt's last token, scaled to
        length 1.  Of an encoder: what its modules.json says, or else the mean of all tokens, scaled
        to length 1.  Raises InvalidInputs naming the prompt that cannot be used, or if the runtime
        has no embeddings.
        """
        engine, ids = self._any_engine(), []
        embedder = engine.encoder if isinstance(engine, EncoderEngine) else engine.embedder
        given = list_prompts(prompts)
        for index, prompt in enumerate(given):
            with naming(f"prompts[{index}]", len(given)):
                ids.append(embedder.check(self._encode(prompt)))
        return embedder.embed(ids)

    def stats(self) -> EngineStats:
        """The engine's numbers: cache, preemptions, tokens."""
        return self._any_engine().stats()

    def close(self) -> None:
        """Give the model's memory back.  A second call does nothing."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _generate(
        self,
        prompts: Sequence[Prompt],
        params: Params,
        shows_progress: bool,
        encode: Callable[[Prompt], list[int]],
        options: Mapping[str, Any],
    ) -> list[Answer]:
        engine = self._open_engine()
        collected: dict[str, Collected] = {}
        try:
            each = list_params(self._default if params is None else params, len(prompts))
            pairs = zip(prompts, each, strict=True)
            for index, (prompt, own) in enumerate(pairs):
                request_id = self._next_id()
                with naming(f"prompts[{index}]", len(prompts)):
                    ids = encode(prompt)
                    engine.add(request_id, ids, own, **options)
                text = prompt if isinstance(prompt, str) else None
                collected[request_id] = Collected(text, ids, own.n)
            _run(engine, collected, _bar(len(prompts) if shows_progress else 0))
        finally:
            _drop(engine, collected)
        return [one.answer() for one in collected.values()]

    def _encode(self, prompt: Prompt, add_special: bool = True) -> list[int]:
        if not isinstance(prompt, str):
            return to_token_ids(prompt)
        if self.tokenizer is None:
            raise InvalidInputs("the model has no tokenizer.json: give lists of token ids")
        return self.tokenizer.encode(prompt, add_special)

    def _encode_chat(self, text: Prompt) -> list[int]:
        return self._encode(text, add_special=False)  # the template has written them

    def _place(self, adapter: str | None) -> int:
        return adapter_place(adapter, list(self._open_engine().config.adapters))

    def _compile(self, grammar: Grammar | None) -> CompiledGrammar | None:
        if grammar is None:
            return None
        if self.tokenizer is None:
            raise InvalidInputs("a grammar needs the model's tokenizer, which is not there")
        if self._compiler is None:
            vocab_size = self._open_engine().runner.vocab_size
            self._compiler = GrammarCompiler(self.tokenizer, vocab_size, self.tokenizer.eos_ids)
        return self._compiler.compile(grammar)

    def _next_id(self) -> str:
        self._num_requests += 1
        return str(self._num_requests)

    def _open_engine(self) -> Engine:
        engine = self._any_engine()
        if isinstance(engine, EncoderEngine):
            raise InvalidInputs(GENERATES_NOTHING)
        return engine

    def _any_engine(self) -> Engine | EncoderEngine:
        if self._engine is None:
            raise ServingError("this LLM is closed")
        return self._engine


def _run(engine: Engine, collected: dict[str, Collected], bar: Iterator[int]) -> None:
    next(bar, None)
    while engine.has_work:
        for request_id, generated in engine.step():
            if collected[request_id].take(generated):
                next(bar, None)


def _drop(engine: Engine, collected: dict[str, Collected]) -> None:
    """Leave nothing behind, whatever happened."""
    for request_id in collected:
        engine.abort(request_id)
    if engine.has_work:
        engine.step()


def _bar(count: int) -> Iterator[int]:
    return iter(progress(range(count), "generate")) if count else iter(())


def _announce(line: str) -> None:
    log.info("%s", line)
    if sys.stderr.isatty():
        print(line, file=sys.stderr)
