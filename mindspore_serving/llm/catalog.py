"""Engines and runtimes for language models, and where their functions are.

Tables: they import no engine, which may be installed in a worker's environment only, and no
runtime.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mindspore_serving.core.model_card import UPSTREAM

OURS = "ours"
GGUF, DIRECTORY = "a GGUF file", "a directory with config.json"
TRANSFORMERS = "transformers"  # a runtime of tasks only
AUTO = "auto"  # default: COMBINED for quantised GGUF files, else OPENVINO (`runtimes.default`)
COMBINED, OPENVINO = "combined", "openvino"


@dataclass(frozen=True, slots=True)
class Runtime:
    """Functions of a runtime, as "module:function"; modules of `llm.runtimes` begin with a dot.

    `opens_encoder` is "" if it has no models that embed and do not generate, `opens_rank` if it
    cannot compute a part of a model, `opens_head` if no prediction head, `opens_seq2seq` if no
    model with an encoder and a decoder. `accepts` has the values of options of which it takes only
    some, `devices` its names for device types of servables; without one, it computes on CPUs only.
    `num_latent` is how often the cache of latent attention has a token's latent vector (on every
    device, or on the one of `keeps_latent_on`), 0 for the keys and values of every head. The flags
    say whether it takes images, whether quantised weights stay integers (on every device, or on the
    one of `keeps_integers_on`), and whether its ranks are started by another program: such a
    runtime cannot be chosen by `serve --runtime`.
    """

    opens: str
    opens_encoder: str = ""
    opens_rank: str = ""
    opens_head: str = ""
    opens_seq2seq: str = ""
    accepts: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=lambda: {"cpu": "cpu"})
    takes_images: bool = False
    keeps_integers: bool = False
    keeps_integers_on: str = ""
    num_latent: int = 0
    keeps_latent_on: str = ""
    has_running_ranks: bool = False


_FLOAT32_ONLY: Mapping[str, tuple[object, ...]] = {
    "device": ("auto", "cpu"),
    "dtype": ("auto", "f32"),
    "kv_cache_dtype": ("auto", "f32"),
    "quantization": (None,),
    "num_threads": (None,),
}
RUNTIMES: dict[str, Runtime] = {
    "openvino": Runtime(
        ".openvino.opening:open_runner",
        ".openvino.encoder:open_encoder",
        ".openvino.opening:open_rank",
        ".openvino.opening:open_head",
        ".openvino.seq2seq_runner:open_runner",
        accepts={
            "device": ("auto", "cpu"),
            "block_size": (32,),
            "dtype": ("auto", "f32", "bf16"),
            "kv_cache_dtype": ("auto", "f32", "f16", "bf16", "u8"),
            "quantization": (None, "int8", "int4"),
        },
        num_latent=2,
        takes_images=True,
        keeps_integers=True,
    ),
    "torch": Runtime(
        ".torch.opening:open_runner",
        ".torch.encoder:open_encoder",
        ".torch.opening:open_rank",
        ".torch.opening:open_head",
        accepts={
            "dtype": ("auto", "f32", "f16", "bf16"),
            "kv_cache_dtype": ("auto", "f32", "f16", "bf16"),
            "quantization": (None,),
        },
        devices={"cpu": "cpu", "gpu": "cuda"},
        num_latent=1,
        keeps_latent_on="cpu",
        takes_images=True,
    ),
    "mindspore": Runtime(
        ".mindspore.opening:open_runner",
        opens_rank=".mindspore.rank_opening:open_rank",
        accepts={
            **_FLOAT32_ONLY,
            "device": ("auto", "cpu", "ascend"),
            "dtype": ("auto", "f32", "f16", "bf16"),
            "kv_cache_dtype": ("auto", "f32", "f16", "bf16"),
            "quantization": (None, "int8", "int4"),
        },
        devices={"cpu": "cpu", "ascend": "ascend"},
        keeps_integers_on="ascend",
        num_latent=1,
    ),
    "mindir": Runtime(
        ".mindir.runner:open_runner",
        opens_rank=".mindir.runner:open_rank",
        accepts={**_FLOAT32_ONLY, "device": ("auto", "cpu", "ascend")},
        devices={"cpu": "cpu", "ascend": "ascend"},
    ),
    "native": Runtime(
        ".native.opening:open_runner",
        accepts={
            "device": ("auto", "cpu"),
            "dtype": ("auto", "f32"),
            "kv_cache_dtype": ("auto", "f32", "f16", "bf16", "u8"),
            "quantization": (None,),
        },
        takes_images=True,
        keeps_integers=True,
    ),
    "combined": Runtime(
        ".combined.opening:open_runner",
        accepts={
            "device": ("auto", "cpu"),
            "block_size": (32,),
            "dtype": ("auto", "f32", "bf16"),
            "kv_cache_dtype": ("auto", "f32", "f16", "bf16"),
            "quantization": (None,),
        },
        keeps_integers=True,
    ),
    "agents": Runtime(".agents:open_runner", accepts=_FLOAT32_ONLY, has_running_ranks=True),
}
ENCODER_RUNTIMES = {name: row for name, row in RUNTIMES.items() if row.opens_encoder}


@dataclass(frozen=True, slots=True)
class EngineRow:
    """An engine beside ours.

    Args:
        opens: "module:function" below `llm.engines`.
        library: the module that it needs.
        reads: formats of the models that it reads.
        devices: its names for device types of servables; "" for one that it chooses by itself.
    """

    opens: str
    library: str
    reads: tuple[str, ...]
    devices: Mapping[str, str] = field(default_factory=lambda: {"cpu": ""})


ENGINES: dict[str, EngineRow] = {
    "vllm": EngineRow(
        "vllm_opening:open_engine",
        "vllm",
        (DIRECTORY,),
        devices={"cpu": "cpu", "gpu": "cuda", "ascend": "npu"},
    ),
    "llama.cpp": EngineRow("llamacpp:open_engine", "llama_cpp", (GGUF,)),
    "genai": EngineRow("genai:open_engine", "openvino_genai", (GGUF, DIRECTORY)),
}
NAMES = (OURS, *ENGINES, UPSTREAM)
