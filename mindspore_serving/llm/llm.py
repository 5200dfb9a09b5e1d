"""Text generation in one process, without a server:

    with LLM("/models/qwen", quantization="int8") as llm:
        for answer in llm.generate(["Hello,", "Once upon"], SamplingParams(max_tokens=32)):
            print(answer.outputs[0].text)

A shell around the engine: it knows prompts and answers, and nothing of how they are computed.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs, ServingError, StartError
from mindspore_serving.llm.chat import ChatTemplate
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine import Engine
from mindspore_serving.llm.outputs import Answer, Collected, Completion
from mindspore_serving.llm.progress import progress
from mindspore_serving.llm.prompts import (
    Params,
    Prompt,
    adapter_place,
    list_params,
    list_prompts,
    naming,
)
from mindspore_serving.llm.request import to_token_ids
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.stats import EngineStats
from mindspore_serving.llm.step import Vectors
from mindspore_serving.llm.tokenizer import Tokenizer, stated_eos_ids

__all__ = ["LLM", "Answer", "Completion"]

Message: TypeAlias = Mapping[str, Any]


class LLM:
    """A language model, loaded and ready.

    Args:
        path: the model's directory: config.json, *.safetensors or *.ckpt, tokenizer.json.  Without
            tokenizer.json only token ids can be given and are returned.
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
        config = _config(quantization, options)
        directory = Path(path)
        if not directory.is_dir():
            raise StartError(f"path is {str(path)!r}, expected a model's directory")
        self.tokenizer: Tokenizer | None = None
        if (directory / "tokenizer.json").is_file():
            self.tokenizer = Tokenizer.open(directory)
        special_tokens = self.tokenizer.special_tokens if self.tokenizer else None
        self._chat_template = ChatTemplate.open(directory, special_tokens)
        eos_ids = self.tokenizer.eos_ids if self.tokenizer else stated_eos_ids(directory)
        runner = open_runner(directory, runtime, config)
        self._engine: Engine | None = Engine(runner, self.tokenizer, config, eos_ids)
        self._num_requests = 0
        _announce(describe(self._engine, directory.name, runtime))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        use_tqdm: bool = True,
        adapter: str | None = None,
    ) -> list[Answer]:
        """The answers to `prompts`, in their order.

        Args:
            prompts: a text or a list of token ids, or a list of such.
            params: for all prompts, or one for each; None is `SamplingParams()`.
            use_tqdm: show how far it is, where stderr is a terminal.
            adapter: the name of one of the `adapters`; None is the model as it is.

        Raises InvalidInputs naming the prompt that cannot be used; then none is computed.  Where
        the model failed, the answer's `finish_reason` is ERROR and its `stop_reason` says why.
        """
        place = self._place(adapter)
        return self._generate(list_prompts(prompts), params, use_tqdm, self._encode, place)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        use_tqdm: bool = True,
        adapter: str | None = None,
        **template_options: Any,
    ) -> list[Answer]:
        """The assistant's answers to a conversation, or to each of a list of them.

        A message is a mapping with "role" and "content".  `template_options` (`tools`,
        `enable_thinking`) go to the model's chat template.  Raises as `generate` does, and
        InvalidInputs if the model has no chat template.
        """
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
        place = self._place(adapter)
        return self._generate(texts, params, use_tqdm, self._encode_chat, place)

    def embed(self, prompts: Prompt | Sequence[Prompt]) -> Vectors:
        """A vector of length 1 for each prompt: the final hidden state of its last token.

        float32 [number of prompts, hidden size].  Raises InvalidInputs naming the prompt that
        cannot be used, or if the runtime has no embeddings.
        """
        engine, ids = self._open_engine(), []
        given = list_prompts(prompts)
        for index, prompt in enumerate(given):
            with naming(f"prompts[{index}]", len(given)):
                ids.append(engine.embedder.check(self._encode(prompt)))
        return engine.embedder.embed(ids)

    def stats(self) -> EngineStats:
        """The engine's numbers: cache, preemptions, tokens."""
        return self._open_engine().stats()

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
        adapter: int,
    ) -> list[Answer]:
        engine = self._open_engine()
        collected: dict[str, Collected] = {}
        try:
            pairs = zip(prompts, list_params(params, len(prompts)), strict=True)
            for index, (prompt, own) in enumerate(pairs):
                request_id = self._next_id()
                with naming(f"prompts[{index}]", len(prompts)):
                    ids = encode(prompt)
                    engine.add(request_id, ids, own, adapter=adapter)
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

    def _next_id(self) -> str:
        self._num_requests += 1
        return str(self._num_requests)

    def _open_engine(self) -> Engine:
        if self._engine is None:
            raise ServingError("this LLM is closed")
        return self._engine


def describe(engine: Engine, model: str, runtime: str) -> str:
    """One line: what was chosen, and what it can hold."""
    runner, config = engine.runner, engine.config
    capacity = runner.num_blocks * runner.block_size
    return (
        f"{model or 'model'}: runtime {runtime}, weights {config.quantization or 'as stored'}; "
        f"cache of {capacity:,} tokens ({runner.num_blocks:,} blocks of {runner.block_size}), "
        f"{capacity / engine.max_model_len:.1f} sequences of {engine.max_model_len:,}; "
        f"at most {config.max_num_seqs} sequences and {config.max_num_batched_tokens} tokens "
        "in a step"
    )


def _config(quantization: str | None, options: dict[str, Any]) -> EngineConfig:
    known = [option.name for option in fields(EngineConfig)]
    for name in options:
        if name not in known:
            raise InvalidInputs(f"{name!r} is no option, expected one of {', '.join(known)}")
    return EngineConfig(quantization=quantization, **options)


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
