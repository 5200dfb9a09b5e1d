"""The options of a language-model engine.  Frozen data; knows no runtime."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mindspore_serving.errors import InvalidInputs, Overloaded


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The options of an engine and of the runner below it.

    Args:
        max_model_len: most tokens of a sequence; None: the model's.  A small cache lowers it.
        max_num_seqs: sequences computed in one step at most.
        max_num_batched_tokens: tokens of one forward pass at most.  A longer prompt is computed in
            several steps, so this bounds how long sequences that decode wait for a step.  A step
            has at most one pass that generates and one that embeds.
        max_num_waiting: requests that may wait for room; None any number.
        max_num_waiting_tokens: tokens that they may have together; None any number.
        kv_cache_memory: bytes for keys, values and states; None lets the runner take what is free.
        block_size: tokens per cache block.  A runtime that has a size of its own refuses others.
        kv_cache_dtype: "auto", or a name the runtime knows ("f32", "f16", "bf16", "u8").
        dtype: what the model computes in: "auto", or a name the runtime knows.
        quantization: how weights are stored, by the runtime's name; None as in the checkpoint.
        device: "auto", or a name the runtime knows ("cpu", "cuda").
        num_threads: None lets the runtime choose.
        tensor_parallel: ranks, processes of this machine, over which every layer is cut; 1 is none.
            `num_threads` and `kv_cache_memory` are of all ranks together.  Runtimes "openvino" and
            "torch".
        pipeline_parallel: stages, processes of this machine, that each hold some of the layers; 1
            is none.  `kv_cache_memory` is of all stages together, `num_threads` of each: with so
            many cores for every stage, they work at the same time.  With `tensor_parallel` as well
            each stage has so many ranks.  Runtimes "openvino", "torch", and "mindir" of files that
            are cut for as many ranks.
        graph_mode: compile the model into static graphs at the start, where the runtime otherwise
            launches its operators one by one; runtime "mindspore" only.
        deterministic: an answer is the same to the bit whatever else is in its steps, but slower;
            runtime "torch" on a CPU in f32, without adapters, mixtures of experts and ranks.
        enable_prefix_caching: keep the blocks of finished sequences for prompts that begin alike.
        prefix_cache_dir: a directory in which the blocks of prompts are kept as well, so that they
            are found after a restart; None keeps none.  Workers may share it.  Runtimes "openvino"
            and "torch", without ranks; not of models with a state, nor of LoRA adapters.
        prefix_cache_disk: bytes that the files there may take, those of other models too.
        pinned_prompts: beginnings of prompts that are computed at the start and stay in the cache:
            a YAML file, or what is in it: a list of texts, of lists of messages, or of mappings
            with one of `prompt` and `messages`, and `tools`, `template_options`, `adapter` or
            `cache_salt`.  Not of models with a state.
        num_speculative_tokens: most tokens of a sequence that are guessed from earlier text and
            verified in one step; 0 none; None: 16, but 0 where layers keep a state, which a wrong
            guess would spoil, and with `graph_mode`, which would compile graphs for them.
        draft: directory or GGUF file of a smaller model with the same tokenizer, which guesses as
            well.  It computes on the same runtime, without adapters.  `kv_cache_memory` is that of
            both together.  Not for models with layers that keep a state, and not with ranks.
        adaptive_speculation: guess only as many as raise tokens per second, by what was measured;
            without it as many as there are.
        max_ngram, min_ngram: how many last tokens must come before for a guess, and how many are
            compared to find the longest match.
        adapters: name -> directory of a LoRA adapter as PEFT writes it; a request chooses one.
        max_loras: adapters that there may be at once; 0: as many as `adapters` has.
        max_lora_rank: highest rank of a matrix of an adapter.
        preparation_timeout: seconds that chat template, tokens and grammar of a request may take.
        preparation_memory: bytes that they may take.
        generation_config: "auto" takes the sampling that generation_config.json recommends as the
            default of OpenAI's routes and of the offline interface; "ignore" does not.
        embeddings: a served model that generates embeds texts as well.  Without it only those that
            are made for it do: encoders, and directories with a modules.json.
        ranking: a served model that generates judges documents, as Qwen3-Reranker does, by the
            logits of "yes" and "no" (or of `classifier_from_token` in config.json); a classifier of
            a family that generates has the words of that model around query and document.
        matryoshka: requests may have the first numbers of vectors alone, though config.json does
            not say that the model was trained for it.
        max_images: pictures of one request to a model that takes them; 0: it reads text alone, and
            what reads pictures is not loaded.
        max_image_bytes: of a picture's file.
        max_image_pixels: width times height of a picture, which are read before it is decoded.
        image_hosts: whose http and https addresses requests may give; "*" is any host with a public
            address.  A private address is asked only if its host is named here.
        generic_tools: describe tools in a system message where the chat template has no form for
            them; without it such a model calls tools only if it must.
        unmarked_calls: read what an answer has as bare JSON on lines of its own, or in a fence, as
            a call, if it names an offered tool and fits its schema.

    Raises InvalidInputs naming the option, what was given and what is accepted.
    """

    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_num_waiting: int | None = None
    max_num_waiting_tokens: int | None = None
    kv_cache_memory: int | None = None
    block_size: int = 32
    kv_cache_dtype: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    device: str = "auto"
    num_threads: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    graph_mode: bool = False
    deterministic: bool = False
    enable_prefix_caching: bool = True
    prefix_cache_dir: str | None = None
    prefix_cache_disk: int = 4 << 30
    pinned_prompts: str | Sequence[Any] = ()
    num_speculative_tokens: int | None = None
    draft: str | Path | None = None
    adaptive_speculation: bool = True
    max_ngram: int = 32
    min_ngram: int = 1
    adapters: Mapping[str, str | Path] = field(default_factory=dict)
    max_loras: int = 0
    max_lora_rank: int = 256
    preparation_timeout: float = 5.0
    preparation_memory: int = 512 << 20
    generation_config: str = "auto"
    embeddings: bool = False
    ranking: bool = False
    matryoshka: bool = False
    max_images: int = 16
    max_image_bytes: int = 20 << 20
    max_image_pixels: int = 32_000_000
    image_hosts: Sequence[str] = ()
    generic_tools: bool = True
    unmarked_calls: bool = True

    @property
    def num_ranks(self) -> int:
        """Processes that share the model."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def has_adapters(self) -> bool:
        """Whether requests may choose one, now or later."""
        return bool(self.adapters) or self.max_loras > 0

    def __post_init__(self) -> None:
        _check_counts(self)
        _check_prefix_cache(self)
        if not isinstance(self.adapters, Mapping):
            raise InvalidInputs(f"adapters is {self.adapters!r}, expected name -> directory")
        hosts = self.image_hosts
        if isinstance(hosts, str) or not all(isinstance(host, str) for host in hosts):
            raise InvalidInputs(f"image_hosts is {hosts!r}, expected a list of names of hosts")
        if 0 < self.max_loras < len(self.adapters):
            raise InvalidInputs(
                f"max_loras is {self.max_loras}, expected at least {len(self.adapters)}: so many "
                "are in adapters"
            )
        given = self.generation_config
        if given not in ("auto", "ignore"):
            raise InvalidInputs(f"generation_config is {given!r}, expected auto or ignore")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidInputs(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, expected at least "
                f"max_num_seqs={self.max_num_seqs}: every sequence computes a token in a step"
            )
        if not isinstance(self.preparation_timeout, int | float) or self.preparation_timeout <= 0:
            raise InvalidInputs(
                f"preparation_timeout is {self.preparation_timeout!r}, expected a number > 0"
            )
        if self.num_ranks > _MOST_RANKS:
            raise InvalidInputs(
                f"tensor_parallel is {self.tensor_parallel} and pipeline_parallel "
                f"{self.pipeline_parallel}, expected at most {_MOST_RANKS} ranks together"
            )
        _check_draft(self)
        if self.max_ngram < self.min_ngram:
            raise InvalidInputs(
                f"max_ngram is {self.max_ngram}, expected at least min_ngram={self.min_ngram}"
            )

    @property
    def asks_for_guesses(self) -> bool:
        """Whether the operator wants them wherever they are possible."""
        return bool(self.num_speculative_tokens or self.draft)

    def most_guesses(self, *, has_states: bool) -> int:
        """Of a sequence in a step; `has_states` is whether layers keep a state."""
        if self.num_speculative_tokens is not None:
            return self.num_speculative_tokens
        return 0 if has_states or self.graph_mode else _MOST_GUESSES


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


def _check_counts(config: EngineConfig) -> None:
    for name, (low, high) in _COUNTS.items():
        value = getattr(config, name)
        if value is None and _DEFAULTS[name] is None:
            continue
        is_int = isinstance(value, int) and not isinstance(value, bool)
        if not is_int or value < low or (high is not None and value > high):
            accepted = f"an int >= {low}" if high is None else f"an int of {low} to {high}"
            raise InvalidInputs(f"{name} is {value!r}, expected {accepted}")


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


_MOST_GUESSES = 16
_MOST_RANKS = 64
_DEFAULTS = {option.name: option.default for option in fields(EngineConfig)}
_COUNTS: dict[str, tuple[int, int | None]] = {
    "max_num_seqs": (1, 4096),
    "max_num_batched_tokens": (1, None),
    "block_size": (1, 4096),
    "num_speculative_tokens": (0, 64),
    "max_ngram": (1, 32),
    "min_ngram": (1, 32),
    "max_loras": (0, 256),
    "max_lora_rank": (1, 65536),
    "tensor_parallel": (1, _MOST_RANKS),
    "pipeline_parallel": (1, _MOST_RANKS),
    "max_images": (0, 256),
    "max_image_bytes": (1, None),
    "max_image_pixels": (1, None),
    "max_model_len": (2, None),
    "max_num_waiting": (1, None),
    "max_num_waiting_tokens": (1, None),
    "kv_cache_memory": (1, None),
    "prefix_cache_disk": (1, None),
    "num_threads": (1, None),
    "preparation_memory": (1 << 20, None),
}
