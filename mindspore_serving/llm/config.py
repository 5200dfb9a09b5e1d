"""Options of a language-model engine: one table, each row a field of `EngineConfig`.

Imports nothing heavy, so that options are checked before a process starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore_serving.core.params import rows_of
from mindspore_serving.llm import option_checks
from mindspore_serving.llm.catalog import ENGINES, RUNTIMES
from mindspore_serving.llm.option_rows import option as _option
from mindspore_serving.llm.option_rows import sampling as _sampling

_RANKED = tuple(name for name, row in RUNTIMES.items() if row.opens_rank)
_STORING = ("openvino", "torch", "native")  # runtimes whose blocks can be stored
_ADAPTED = ("openvino", "torch", "mindspore", "native")  # runtimes with LoRA adapters
LOW_MEMORY = "low"  # value of `memory`
_MAX_DRAFT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Options of an engine and of the runner below it.

    Raises InvalidInputs naming the option, what was given and what is accepted.
    """

    max_model_len: int | None = _option(
        None,
        "maximum number of tokens of a sequence; None: the model's. A small cache lowers it.",
        at_least=2,
        engines=ENGINES,
    )
    max_num_seqs: int = _option(
        64, "maximum number of sequences in a step", at_least=1, at_most=4096, engines=ENGINES
    )
    max_num_batched_tokens: int = _option(
        512,
        "maximum number of tokens of a forward pass. A longer prompt is computed in several "
        "steps, so this limits how long sequences that decode wait for a step. A step has at "
        "most one pass that generates and one that embeds.",
        at_least=1,
        engines=ENGINES,
    )
    max_num_waiting: int | None = _option(
        None, "maximum of waiting requests; None: 1,024 if served", at_least=1, engines=ENGINES
    )
    max_num_waiting_tokens: int | None = _option(
        None, "maximum number of their tokens; None: 2**20 if served", at_least=1, engines=ENGINES
    )
    kv_cache_memory: int | None = _option(
        None,
        "bytes for keys, values and states; None: 12 % of the memory, or what one sequence of "
        "`max_model_len` tokens needs",
        at_least=1,
        engines=ENGINES,
        runtimes=RUNTIMES,
    )
    block_size: int = _option(
        32,
        "tokens per cache block. A runtime with a fixed size refuses other sizes.",
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
        "dtype in which the model computes: 'auto', or a name the runtime knows",
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
        None, "None: the runtime chooses", at_least=1, engines=("llama.cpp", "genai")
    )
    memory: str = _option(
        "auto", "'low': keep no copy of weights beside the mapped file, so prompts are slower; "
        "runtimes 'combined' and 'native'",
        choices=("auto", LOW_MEMORY), runtimes=("combined", "native"),
    )  # fmt: skip
    tensor_parallel: int = _option(
        1,
        "number of ranks, processes of this machine, over which every layer is cut; 1: not cut. "
        "`num_threads` and `kv_cache_memory` are those of all ranks together. Runtimes "
        "'openvino', 'torch' and 'mindspore', which on Ascend has a device for each rank.",
        at_least=1, at_most=option_checks.MAX_RANKS, engines=("vllm",), runtimes=_RANKED,
        has_encoders=False,
    )  # fmt: skip
    expert_parallel: bool = _option(
        False,
        "hold whole experts on ranks of `tensor_parallel`, not parts of all",
        engines=("vllm",), runtimes=("openvino", "torch", "mindspore"), has_encoders=False,
    )  # fmt: skip
    expert_counts: str = _option(
        "", "with `expert_parallel`: file of the tokens that experts got, which is written at the "
        "end and every 10 minutes; a start places experts by it, so that ranks have as much to do",
        runtimes=("openvino", "torch"), has_encoders=False,
    )  # fmt: skip
    expert_replicas: int = _option(
        0, "experts of a layer that each rank has in addition: copies of the hottest by "
        "`expert_counts`", at_least=0, at_most=1024, runtimes=("openvino", "torch"),
        has_encoders=False,
    )  # fmt: skip
    pipeline_parallel: int = _option(
        1,
        "number of stages, processes of this machine, that each hold some of the layers; 1: one "
        "process. `kv_cache_memory` is that of all stages together, `num_threads` that of each "
        "stage: with as many cores for every stage, they overlap. With `tensor_parallel`, each "
        "has that many ranks. The runtime 'mindir' needs files that are cut for as many ranks.",
        at_least=1, at_most=option_checks.MAX_RANKS, runtimes=_RANKED, has_encoders=False,
    )  # fmt: skip
    stage_layers: str = _option(
        "",
        "layers of each stage in relation, as '10:22'; '': as many, or as fast as machines are",
        runtimes=tuple(name for name in _RANKED if name != "mindir"),
        has_encoders=False,
    )
    pipeline_groups: int | None = _option(
        None,
        "groups of decoding sequences that stages compute at the same time; None: by measurement",
        at_least=1,
        runtimes=_RANKED,
        has_encoders=False,
    )
    deterministic: bool = _option(
        False,
        "compute an answer to the same bits whatever other requests are in its steps, which is "
        "slower; runtime 'combined', then without OpenVINO, or 'torch' on a CPU in f32, without "
        "adapters, mixtures of experts and ranks",
        runtimes=("torch", "combined"),
        has_encoders=False,
    )
    composed_primitives: str = _option(
        "auto",
        "runtime 'mindspore' on Ascend: operators composed of plain ones: 'auto' (those that a "
        "test at the start finds wrong), 'all', 'none', or names divided by commas",
        runtimes=("mindspore",),
    )
    enable_prefix_caching: bool = _option(
        True,
        "keep the blocks of finished sequences for prompts with the same prefix",
        engines=("vllm", "genai"),
    )
    prefix_cache_dir: str | None = _option(
        None,
        "directory for a copy of the prefix cache, so that prompts hit it after a restart; "
        "None: no copy. Workers may share it. Runtimes 'openvino', 'torch' and 'native', without "
        "ranks; not for models with a state, nor for LoRA adapters.",
        runtimes=_STORING,
        has_encoders=False,
    )
    prefix_cache_disk: int = _option(
        4 << 30, "maximum number of bytes there, files of other models included", at_least=1
    )
    prefix_cache_store: str = _option(
        "",
        "URL of a store of cached prompts that servers share: redis:// or rediss:// (Valkey too), "
        "file://, s3://, gs://, az:// or another scheme of fsspec; for the same models as "
        "prefix_cache_dir",
        runtimes=_STORING, has_encoders=False,
    )  # fmt: skip
    prefix_cache_store_size: int = _option(
        16 << 30, "maximum number of bytes there, blocks of other models included", at_least=1
    )
    prefix_cache_store_seconds: float = _option(
        86400.0, "seconds after its last use in which a block is kept there; 0: no limit",
        at_least=0,
    )  # fmt: skip
    prefix_cache_store_timeout: float = _option(
        1.0, "seconds without an answer of the store, after which a prompt is computed", over=0.0
    )
    prefix_cache_store_compression: str = _option(
        "auto", "compress blocks by zstd: auto (if that is faster than the wire), none or zstd",
        choices=("auto", "none", "zstd"),
    )  # fmt: skip
    prefix_cache_store_key: str = _option(
        "", "file of a secret that all servers of the store share: blocks of others are not read"
    )
    handoff_tokens: int | None = _option(
        None, "with the option roles: tokens, not cached, from which on a worker with the role "
        "prefill computes a prompt; None: by measured costs", at_least=1, runtimes=_STORING,
    )  # fmt: skip
    pinned_prompts: str | Sequence[Any] = _option(
        (),
        "prefixes of prompts that are computed at the start and stay in the cache: a YAML file, or "
        "a list of texts, of lists of messages, or of mappings with either `prompt` or `messages`, "
        "and any of `tools`, `template_options`, `adapter` and `cache_salt`. Not for models with "
        "a state.",
    )
    num_speculative_tokens: int | None = _option(
        None,
        "maximum number of draft tokens of a sequence, taken from earlier text and verified in "
        "one step; 0: none; None: 16",
        at_least=0,
        at_most=64,
        engines=("llama.cpp",),
    )
    draft: str | Path | None = _option(
        None,
        "directory or GGUF file of a draft model: a smaller model with the same tokenizer, or an "
        "EAGLE-3 head. It computes on the same runtime, without adapters. `kv_cache_memory` is "
        "that of both models together. Not for models with layers that keep a state (a head is "
        "for them too), and not with ranks.",
        runtimes={name for name, row in RUNTIMES.items() if not row.has_running_ranks},
        has_encoders=False,
    )
    mtp: bool = _option(
        False,
        "draft tokens by the checkpoint's prediction head (multi-token prediction: DeepSeek V3, "
        "GLM-4.5, MiMo, Qwen3-Next, Qwen3.5), where earlier text has no better ones. Not with a "
        "draft model, and not with ranks.",
        runtimes={name for name, row in RUNTIMES.items() if row.opens_head},
        has_encoders=False,
    )
    adaptive_speculation: bool = _option(
        True,
        "verify only as many draft tokens as raise the measured tokens per second; False: all",
    )
    max_ngram: int = _option(
        32, "maximum number of last tokens that a draft from earlier text has to match",
        at_least=1, at_most=32, engines=("llama.cpp",),
    )  # fmt: skip
    min_ngram: int = _option(
        1, "minimum number of last tokens that a draft from earlier text has to match",
        at_least=1, at_most=32, engines=("llama.cpp",),
    )  # fmt: skip
    adapters: Mapping[str, str | Path] = _option(
        {},
        "directories of LoRA adapters as PEFT writes them, by name; a request names an adapter",
        engines=("vllm",),
        runtimes=_ADAPTED,
        has_encoders=False,
    )
    max_loras: int = _option(
        0, "maximum number of loaded adapters; 0: as many as `adapters` has",
        at_least=0, at_most=256, runtimes=_ADAPTED,
    )  # fmt: skip
    max_lora_rank: int = _option(
        256, "highest rank of a matrix of an adapter", at_least=1, at_most=65536
    )
    preparation_timeout: float = _option(
        5.0,
        "seconds that preparing a request may take: chat template, tokens and grammar",
        over=0.0,
        engines=ENGINES,
    )
    preparation_memory: int = _option(
        512 << 20, "bytes that preparing it may take", at_least=1 << 20, engines=ENGINES
    )
    generation_config: str = _option(
        "auto",
        "'auto': sampling parameters in generation_config.json (of a GGUF file: its keys "
        "general.sampling) are defaults of requests; 'ignore': as if the model recommended none",
        choices=("auto", "ignore"),
        engines=ENGINES,
    )
    default_temperature: float | None = _sampling("temperature")
    default_top_k: int | None = _sampling("top_k")
    default_top_p: float | None = _sampling("top_p")
    default_min_p: float | None = _sampling("min_p")
    default_repetition_penalty: float | None = _sampling("repetition_penalty")
    default_num_beams: int | None = _sampling("num_beams", "the model's, or else 1", ())
    default_max_tokens: int | None = _sampling("max_tokens", "as the protocol says")
    default_thinking_token_budget: int | None = _sampling("thinking_token_budget", "none", ())
    system_message: str = _option(
        "", "system message of conversations that have none", engines=ENGINES, has_encoders=False
    )
    embeddings: bool = _option(
        False,
        "let a served model that generates embed texts as well. Otherwise only models made for "
        "it do: encoders, and directories with a modules.json.",
    )
    ranking: bool = _option(
        False,
        "let a served model that generates judge documents, as Qwen3-Reranker does, by the "
        "logits of 'yes' and 'no' (or of `classifier_from_token` in config.json); a classifier "
        "of a family that generates gets query and document in the prompt of that model",
    )
    matryoshka: bool = _option(
        False,
        "let requests ask for the first dimensions of vectors only, even if config.json does "
        "not say that the model was trained for it",
    )
    mmproj: str | None = _option(
        None, "of a model in a GGUF file: the GGUF file of its vision tower, as llama.cpp's "
        "converter writes it; None: the file beside the model with mmproj in its name",
        runtimes={name for name, row in RUNTIMES.items() if row.takes_images}, has_encoders=False,
    )  # fmt: skip
    max_images: int = _option(
        16, "maximum number of images of a request to a model that takes them; 0: the model reads "
        "text only, and its image encoder is not loaded", at_least=0, at_most=256,
    )  # fmt: skip
    max_audios: int = _option(
        4, "maximum number of sounds of a request to a model that takes sounds; 0: it takes none, "
        "and its sound encoder is not loaded", at_least=0, at_most=64,
    )  # fmt: skip
    max_audio_seconds: float = _option(
        7200.0,
        "longest recording in seconds, checked before it is decoded, of models that transcribe or "
        "take sounds, whose own limit may be lower",
        over=0.0, at_most=86_400,
    )  # fmt: skip
    max_speech_characters: int = _option(
        4096, "longest text to synthesize, in characters", at_least=1, at_most=1 << 20, runtimes=(),
    )  # fmt: skip
    max_image_bytes: int = _option(20 << 20, "maximum size of an image file in bytes", at_least=1)
    max_image_pixels: int = _option(
        32_000_000, "maximum width times height of an image, checked before it is decoded",
        at_least=1,
    )  # fmt: skip
    max_videos: int = _option(
        1, "maximum number of videos of a request to a model that takes images", at_least=0,
        at_most=16,
    )  # fmt: skip
    max_video_frames: int = _option(
        16, "maximum number of frames that are read of a video, evenly by time", at_least=1,
        at_most=64,
    )  # fmt: skip
    max_video_seconds: float = _option(
        7200.0, "longest video in seconds, checked before it is decoded", over=0.0, at_most=86_400
    )
    max_documents: int = _option(
        4, "maximum number of PDF files and texts in messages of a request", at_least=0, at_most=64
    )
    max_document_pages: int = _option(
        32, "maximum number of pages of a PDF file, checked before one is read", at_least=1,
        at_most=10_000,
    )  # fmt: skip
    max_file_bytes: int = _option(
        32 << 20, "maximum size of a video, sound or document in bytes", at_least=1
    )
    image_hosts: Sequence[str] = _option(
        (),
        "hosts from which requests may have images, videos, sounds and documents fetched over http "
        "and https; '*': any host with a public address. A private address is fetched only if its "
        "host is named here.",
    )
    generic_tools: bool = _option(
        True,
        "describe tools in a system message where the chat template has no format for them; "
        "otherwise such a model calls tools only if a request requires it",
        engines=ENGINES,
    )
    unmarked_calls: bool = _option(
        True,
        "parse bare JSON in an answer, on separate lines or in a fence, as a tool call, if it "
        "names an offered tool and fits its schema",
        engines=ENGINES,
    )

    @property
    def num_ranks(self) -> int:
        """Number of processes that share the model."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def has_adapters(self) -> bool:
        """True if requests may name an adapter, now or later."""
        return bool(self.adapters) or self.max_loras > 0

    def __post_init__(self) -> None:
        for name, row in OPTIONS.items():
            row.check(getattr(self, name))
        option_checks.check_together(self)

    def is_set(self, name: str) -> bool:
        """Return whether the option has another value than its default."""
        return bool(getattr(self, name) != OPTIONS[name].default)

    @property
    def requests_speculation(self) -> bool:
        """True if the operator has asked for draft tokens wherever they are possible."""
        return bool(self.num_speculative_tokens or self.draft or self.mtp)

    @property
    def max_draft_tokens(self) -> int:
        """Maximum number of draft tokens of a sequence in a step."""
        if self.num_speculative_tokens is not None:
            return self.num_speculative_tokens
        return _MAX_DRAFT_TOKENS


OPTIONS = rows_of(EngineConfig)
