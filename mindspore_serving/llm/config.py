"""The options of a language-model engine: one table, each row a field of `EngineConfig`.  Light, so
that they are checked before a process starts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mindspore_serving.core.params import param, rows_of
from mindspore_serving.errors import InvalidInputs, Overloaded
from mindspore_serving.llm.catalog import ENGINES, RUNTIMES, TRANSFORMERS

ENCODERS = "encoders"
_ALL = (*RUNTIMES, TRANSFORMERS)
_RANKED = tuple(name for name, row in RUNTIMES.items() if row.opens_rank)
_MAX_GUESSES = 16
_MAX_RANKS = 64

T = TypeVar("T")


def _option(
    default: T,
    meaning: str,
    *,
    engines: Collection[str] = (),
    runtimes: Collection[str] = _ALL,
    has_encoders: bool = True,
    **accepted: Any,
) -> T:
    """A row: beside ours, `engines` take the option as well; of ours the `runtimes` do, and models
    that only embed if it `has_encoders`.  `accepted` are arguments of `param`.
    """
    without = {*ENGINES, *_ALL} - {*engines, *runtimes}
    if not has_encoders:
        without.add(ENCODERS)
    return param(default, meaning, **{**accepted, **dict.fromkeys(without)})


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The options of an engine and of the runner below it.

    Raises InvalidInputs naming the option, what was given and what is accepted.
    """

    max_model_len: int | None = _option(
        None,
        "most tokens of a sequence; None: the model's. A small cache lowers it.",
        at_least=2,
        engines=ENGINES,
    )
    max_num_seqs: int = _option(
        64, "sequences computed in one step at most", at_least=1, at_most=4096, engines=ENGINES
    )
    max_num_batched_tokens: int = _option(
        512,
        "tokens of one forward pass at most. A longer prompt is computed in several steps, so "
        "this bounds how long sequences that decode wait for a step. A step has at most one "
        "pass that generates and one that embeds.",
        at_least=1,
        engines=ENGINES,
    )
    max_num_waiting: int | None = _option(
        None, "requests that may wait for room; None any number", at_least=1, engines=ENGINES
    )
    max_num_waiting_tokens: int | None = _option(
        None, "tokens that they may have together; None any number", at_least=1, engines=ENGINES
    )
    kv_cache_memory: int | None = _option(
        None,
        "bytes for keys, values and states; None lets the runner take what is free",
        at_least=1,
        engines=ENGINES,
        runtimes=RUNTIMES,
    )
    block_size: int = _option(
        32,
        "tokens per cache block. A runtime that has a size of its own refuses others.",
        at_least=1,
        at_most=4096,
        engines=("vllm",),
    )
    kv_cache_dtype: str = _option(
        "auto",
        "'auto', or a name the runtime knows ('f32', 'f16', 'bf16', 'u8')",
        engines=("vllm",),
    )
    dtype: str = _option(
        "auto",
        "what the model computes in: 'auto', or a name the runtime knows",
        engines=("vllm", "genai"),
        runtimes=RUNTIMES,
    )
    quantization: str | None = _option(
        None,
        "how weights are stored, by the runtime's name; None as in the checkpoint",
        engines=("vllm",),
        runtimes=RUNTIMES,
    )
    device: str = _option(
        "auto", "'auto', or a name the runtime knows ('cpu', 'cuda')", engines=("vllm",)
    )
    num_threads: int | None = _option(
        None, "None lets the runtime choose", at_least=1, engines=("llama.cpp", "genai")
    )
    tensor_parallel: int = _option(
        1,
        "ranks, processes of this machine, over which every layer is cut; 1 is none. "
        "`num_threads` and `kv_cache_memory` are of all ranks together. Runtimes 'openvino' "
        "and 'torch'.",
        at_least=1,
        at_most=_MAX_RANKS,
        engines=("vllm",),
        runtimes=_RANKED,
        has_encoders=False,
    )
    pipeline_parallel: int = _option(
        1,
        "stages, processes of this machine, that each hold some of the layers; 1 is none. "
        "`kv_cache_memory` is of all stages together, `num_threads` of each: with so many "
        "cores for every stage, they work at the same time. With `tensor_parallel` as well "
        "each stage has so many ranks. Runtimes 'openvino', 'torch', and 'mindir' of files "
        "that are cut for as many ranks.",
        at_least=1,
        at_most=_MAX_RANKS,
        runtimes=_RANKED,
        has_encoders=False,
    )
    graph_mode: bool = _option(
        False,
        "compile the model into static graphs at the start, where the runtime otherwise "
        "launches its operators one by one; runtime 'mindspore' only",
        runtimes=("mindspore",),
        has_encoders=False,
    )
    deterministic: bool = _option(
        False,
        "an answer is the same to the bit whatever else is in its steps, but slower; runtime "
        "'torch' on a CPU in f32, without adapters, mixtures of experts and ranks",
        runtimes=("torch",),
        has_encoders=False,
    )
    enable_prefix_caching: bool = _option(
        True,
        "keep the blocks of finished sequences for prompts that begin alike",
        engines=("vllm", "genai"),
    )
    prefix_cache_dir: str | None = _option(
        None,
        "a directory in which the blocks of prompts are kept as well, so that they are found "
        "after a restart; None keeps none. Workers may share it. Runtimes 'openvino' and "
        "'torch', without ranks; not of models with a state, nor of LoRA adapters.",
        runtimes=("openvino", "torch"),
        has_encoders=False,
    )
    prefix_cache_disk: int = _option(
        4 << 30, "bytes that the files there may take, those of other models too", at_least=1
    )
    pinned_prompts: str | Sequence[Any] = _option(
        (),
        "beginnings of prompts that are computed at the start and stay in the cache: a YAML "
        "file, or what is in it: a list of texts, of lists of messages, or of mappings with "
        "one of `prompt` and `messages`, and `tools`, `template_options`, `adapter` or "
        "`cache_salt`. Not of models with a state.",
    )
    num_speculative_tokens: int | None = _option(
        None,
        "most tokens of a sequence that are guessed from earlier text and verified in one "
        "step; 0 none; None: 16, but 0 where layers keep a state, which a wrong guess would "
        "spoil, and with `graph_mode`, which would compile graphs for them",
        at_least=0,
        at_most=64,
        engines=("llama.cpp",),
    )
    draft: str | Path | None = _option(
        None,
        "directory or GGUF file of a smaller model with the same tokenizer, which guesses as "
        "well. It computes on the same runtime, without adapters. `kv_cache_memory` is that "
        "of both together. Not for models with layers that keep a state, and not with ranks.",
        runtimes={name for name, row in RUNTIMES.items() if not row.has_running_ranks},
        has_encoders=False,
    )
    adaptive_speculation: bool = _option(
        True,
        "guess only as many as raise tokens per second, by what was measured; without it as "
        "many as there are",
    )
    max_ngram: int = _option(
        32,
        "how many last tokens are compared to find the longest match before, for a guess",
        at_least=1,
        at_most=32,
        engines=("llama.cpp",),
    )
    min_ngram: int = _option(
        1,
        "how many last tokens must come before for a guess",
        at_least=1,
        at_most=32,
        engines=("llama.cpp",),
    )
    adapters: Mapping[str, str | Path] = _option(
        {},
        "name -> directory of a LoRA adapter as PEFT writes it; a request chooses one",
        engines=("vllm",),
        runtimes=("openvino", "torch"),
        has_encoders=False,
    )
    max_loras: int = _option(
        0,
        "adapters that there may be at once; 0: as many as `adapters` has",
        at_least=0,
        at_most=256,
        runtimes=("openvino", "torch"),
    )
    max_lora_rank: int = _option(
        256, "highest rank of a matrix of an adapter", at_least=1, at_most=65536
    )
    preparation_timeout: float = _option(
        5.0,
        "seconds that chat template, tokens and grammar of a request may take",
        over=0.0,
        engines=ENGINES,
    )
    preparation_memory: int = _option(
        512 << 20, "bytes that they may take", at_least=1 << 20, engines=ENGINES
    )
    generation_config: str = _option(
        "auto",
        "'auto' takes the sampling that generation_config.json recommends as the default of "
        "OpenAI's routes and of the offline interface; 'ignore' does not",
        choices=("auto", "ignore"),
        engines=ENGINES,
    )
    embeddings: bool = _option(
        False,
        "a served model that generates embeds texts as well. Without it only those that are "
        "made for it do: encoders, and directories with a modules.json.",
    )
    ranking: bool = _option(
        False,
        "a served model that generates judges documents, as Qwen3-Reranker does, by the "
        "logits of 'yes' and 'no' (or of `classifier_from_token` in config.json); a "
        "classifier of a family that generates has the words of that model around query and "
        "document",
    )
    matryoshka: bool = _option(
        False,
        "requests may have the first numbers of vectors alone, though config.json does not "
        "say that the model was trained for it",
    )
    max_images: int = _option(
        16,
        "images of one request to a model that takes them; 0: it reads text alone, and what "
        "reads images is not loaded",
        at_least=0,
        at_most=256,
    )
    max_image_bytes: int = _option(20 << 20, "of an image's file", at_least=1)
    max_image_pixels: int = _option(
        32_000_000,
        "width times height of an image, which are read before it is decoded",
        at_least=1,
    )
    image_hosts: Sequence[str] = _option(
        (),
        "whose http and https addresses requests may give; '*' is any host with a public "
        "address. A private address is asked only if its host is named here.",
    )
    generic_tools: bool = _option(
        True,
        "describe tools in a system message where the chat template has no form for them; "
        "without it such a model calls tools only if it must",
        engines=ENGINES,
    )
    unmarked_calls: bool = _option(
        True,
        "read what an answer has as bare JSON on lines of its own, or in a fence, as a call, "
        "if it names an offered tool and fits its schema",
        engines=ENGINES,
    )

    @property
    def num_ranks(self) -> int:
        """Processes that share the model."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def has_adapters(self) -> bool:
        """Whether requests may choose one, now or later."""
        return bool(self.adapters) or self.max_loras > 0

    def __post_init__(self) -> None:
        for name, row in OPTIONS.items():
            row.check(getattr(self, name))
        _check_prefix_cache(self)
        _check_adapters(self)
        _check_draft(self)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidInputs(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, expected at least "
                f"max_num_seqs={self.max_num_seqs}: every sequence computes a token in a step"
            )
        if self.num_ranks > _MAX_RANKS:
            raise InvalidInputs(
                f"tensor_parallel is {self.tensor_parallel} and pipeline_parallel "
                f"{self.pipeline_parallel}, expected at most {_MAX_RANKS} ranks together"
            )
        if self.max_ngram < self.min_ngram:
            raise InvalidInputs(
                f"max_ngram is {self.max_ngram}, expected at least min_ngram={self.min_ngram}"
            )

    def gives(self, name: str) -> bool:
        """Whether the option has another value than its default."""
        return bool(getattr(self, name) != OPTIONS[name].default)

    @property
    def asks_for_guesses(self) -> bool:
        """Whether the operator wants them wherever they are possible."""
        return bool(self.num_speculative_tokens or self.draft)

    def most_guesses(self, *, has_states: bool) -> int:
        """Of a sequence in a step; `has_states` is whether layers keep a state."""
        if self.num_speculative_tokens is not None:
            return self.num_speculative_tokens
        return 0 if has_states or self.graph_mode else _MAX_GUESSES


def _check_draft(config: EngineConfig) -> None:
    if config.draft is None:
        return
    if not isinstance(config.draft, str | Path) or not str(config.draft):
        raise InvalidInputs(f"draft is {config.draft!r}, expected a directory or a GGUF file")
    reasons = {
        "num_speculative_tokens=0, which makes no guesses": config.num_speculative_tokens == 0,
        "graph_mode, which compiles one model": config.graph_mode,
        "tensor_parallel or pipeline_parallel, whose ranks share one model": config.num_ranks > 1,
    }
    for reason, is_given in reasons.items():
        if is_given:
            raise InvalidInputs(f"draft is {str(config.draft)!r} beside {reason}: leave one out")


def _check_adapters(config: EngineConfig) -> None:
    if not isinstance(config.adapters, Mapping):
        raise InvalidInputs(f"adapters is {config.adapters!r}, expected name -> directory")
    if 0 < config.max_loras < len(config.adapters):
        raise InvalidInputs(
            f"max_loras is {config.max_loras}, expected at least {len(config.adapters)}: so many "
            "are in adapters"
        )


def _check_prefix_cache(config: EngineConfig) -> None:
    if config.pinned_prompts and not config.enable_prefix_caching:
        raise InvalidInputs("pinned_prompts are given, which need enable_prefix_caching")
    if not config.prefix_cache_dir:
        return
    given = f"prefix_cache_dir is {str(config.prefix_cache_dir)!r}"
    if not config.enable_prefix_caching:
        raise InvalidInputs(f"{given}, which needs enable_prefix_caching")
    if config.num_ranks > 1:
        raise InvalidInputs(
            f"{given}, but the model is cut over {config.num_ranks} ranks, which keep no blocks on "
            "disk; leave it out"
        )


def check_room(config: EngineConfig, noun: str, count: int, held: int, new: int) -> None:
    """Raises Overloaded if `new` tokens may not wait beside `count` requests of `held` tokens."""
    most = config.max_num_waiting
    if most is not None and count >= most:
        raise Overloaded(f"{count} {noun} wait already, at most {most} may; try again")
    most = config.max_num_waiting_tokens
    if most is not None and count and held + new > most:
        raise Overloaded(f"{noun} with {held} tokens wait already, at most {most} may; try again")


OPTIONS = rows_of(EngineConfig)
