"""The language model of the benchmarks: a quarter of a billion random weights, and a tokenizer.

`python -m benchmarks.llm_model` writes benchmarks/.cache/llm/: float (a Hugging Face directory in
bfloat16), int8 and int4 (made from it by our converter; also float16 where a processor has no
bfloat16), and, by converters that run in the peers' environments, genai_* (OpenVINO IR, the floats
as float16) and *.gguf.  What is there already is kept.

The shapes are Llama's; the weights say nothing, so speeds are compared and never answers.
"""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.llm_contenders import environment
from benchmarks.processes import HERE, ROOT

PLACE = HERE / ".cache" / "llm"
FLOAT = PLACE / "float"
SEED = 25
SCALE = 0.02  # of the weights
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 2816,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}
SPECIAL = ("<s>", "</s>")


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of the checkpoint by name."""
    hidden, wide, vocab = (CONFIG[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    heads, head_dim = CONFIG["num_attention_heads"], CONFIG["head_dim"]
    keys = CONFIG["num_key_value_heads"] * head_dim
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(CONFIG["num_hidden_layers"]):
        start = f"model.layers.{layer}."
        yield start + "input_layernorm.weight", (hidden,)
        yield start + "self_attn.q_proj.weight", (heads * head_dim, hidden)
        yield start + "self_attn.k_proj.weight", (keys, hidden)
        yield start + "self_attn.v_proj.weight", (keys, hidden)
        yield start + "self_attn.o_proj.weight", (hidden, heads * head_dim)
        yield start + "post_attention_layernorm.weight", (hidden,)
        yield start + "mlp.gate_proj.weight", (wide, hidden)
        yield start + "mlp.up_proj.weight", (wide, hidden)
        yield start + "mlp.down_proj.weight", (hidden, wide)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def num_multiplied() -> int:
    """Weights that a token is multiplied by: all matrices but the embedding."""
    sizes = dict(shapes())
    table = sizes.pop("model.embed_tokens.weight")
    assert len(table) == 2
    return sum(shape[0] * shape[1] for shape in sizes.values() if len(shape) == 2)


def key_value_bytes() -> int:
    """What a token takes in a cache of 16 bits."""
    layers, heads = CONFIG["num_hidden_layers"], CONFIG["num_key_value_heads"]
    size: int = 2 * 2 * layers * heads * CONFIG["head_dim"]
    return size


def write_float() -> None:
    from mindspore_serving.llm.checkpoint.safetensors import StoredTensor, write_safetensors

    FLOAT.mkdir(parents=True)
    random = np.random.default_rng(SEED)
    tensors = (
        (name, StoredTensor("BF16", shape, _bfloat16(_weights(random, shape))))
        for name, shape in shapes()
    )
    write_safetensors(FLOAT, tensors, {"format": "pt"})
    (FLOAT / "config.json").write_text(json.dumps(CONFIG, indent=2))
    # Nobody may stop at an end token: the number of tokens is what is compared.
    (FLOAT / "generation_config.json").write_text(json.dumps({"do_sample": False}))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (FLOAT / "tokenizer_config.json").write_text(json.dumps(kind))
    write_tokenizer(FLOAT / "tokenizer.json")


def _weights(random: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    if len(shape) == 1:
        return np.ones(shape, np.float32)  # of a norm
    return random.standard_normal(shape, np.float32) * np.float32(SCALE)


def _bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Rounded to the nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def write_tokenizer(path: Path) -> None:
    """Byte-level BPE of 32,000 tokens, trained on the sources of Python's standard library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )
    library = Path(sysconfig.get_path("stdlib"))
    sources = sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
    texts = (source.read_text("utf-8", "replace") for source in sources)
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != CONFIG["vocab_size"]:
        raise SystemExit(f"the standard library gave {tokenizer.get_vocab_size()} tokens only")
    tokenizer.save(str(path))


def float_model() -> Path:
    if not (FLOAT / "tokenizer.json").exists():
        write_float()
    return FLOAT


def model(contender: str, form: str) -> Path:
    """The file or directory that `contender` loads, written now if it is not there.

    `form` is "float", "int8" or "int4".
    """
    source = float_model()
    if contender == "llama.cpp":
        kind = {"float": "bf16", "int8": "q8_0", "int4": "q4_0"}[form]
        return _converted(PLACE / f"{kind}.gguf", "llm_llama_cpp", "convert_gguf", kind)
    if contender == "genai":
        return _converted(PLACE / f"genai_{form}", "llm_genai", "convert_genai", form)
    mode = form
    if form == "float":
        if contender != "ours" or has_bf16():
            return source
        mode = "float16"
    target = PLACE / mode
    if not target.exists():
        from mindspore_serving.llm.quantize import quantize

        quantize(source, target, mode)
    return target


def has_bf16() -> bool:
    """Whether the processor computes in bfloat16; where not, float16 is read faster."""
    import openvino

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _converted(target: Path, name: str, script: str, kind: str) -> Path:
    if not target.exists():
        command = [environment(name), "-m", f"benchmarks.runners.{script}"]
        subprocess.run([*command, str(FLOAT), str(target), kind], cwd=ROOT, check=True)
    return target


def main() -> None:
    for contender in ("ours", "genai", "llama.cpp"):
        for form in ("float", "int8", "int4"):
            print(model(contender, form).relative_to(ROOT), flush=True)


if __name__ == "__main__":
    main()
