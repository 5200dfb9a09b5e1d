"""GGUF files of the benchmarks: a Llama of 0.8 billion random weights, of real files' types.

`python -m benchmarks.gguf_models q4_k_m q8_0` writes benchmarks/.cache/llm/wide-q4_k_m.gguf and so
on.  What is there already is kept.  Which matrix has which type is as llama.cpp's quantiser chooses
for such a shape; the bits are random, so speeds and sizes are compared and never answers.

`qwen2.5-0.5b` has the shapes, types and number of tokens of Qwen2.5-0.5B in Q4_K_M, to measure
starts: random weights, and a byte-level BPE of random merges.

`smollm2-q8_0` is the model of the examples with all matrices in Q8_0, which engines read without
rounding.  Of its own Q4_1 OpenVINO GenAI rounds the zeros, so that it repeats itself more.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PLACE = Path(__file__).resolve().parent / ".cache" / "llm"
VOCABULARY, HIDDEN, WIDE, LAYERS, HEADS, KEYS, HEAD_DIM = 32000, 2048, 5632, 16, 32, 4, 64
SEED = 26
# Numbers of a block, its bytes, and where it has float16 numbers: of the scale and of the minimum.
BLOCKS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "Q4_0": (32, 18, (0,)),
    "Q5_0": (32, 22, (0,)),
    "Q8_0": (32, 34, (0,)),
    "Q4_K": (256, 144, (0, 2)),
    "Q5_K": (256, 176, (0, 2)),
    "Q6_K": (256, 210, (208,)),
}
# The type of most matrices, of the output, and of half of the values and of the down projections.
MIXES = {
    "q4_0": ("Q4_0", "Q6_K", "Q4_0"),
    "q4_k_m": ("Q4_K", "Q6_K", "Q6_K"),
    "q5_k_m": ("Q5_K", "Q6_K", "Q6_K"),
    "q6_k": ("Q6_K", "Q6_K", "Q6_K"),
    "q8_0": ("Q8_0", "Q8_0", "Q8_0"),
}
REAL = "smollm2-q8_0"
QWEN = "qwen2.5-0.5b"
QWEN_CONFIG = {
    "hidden_size": 896, "num_hidden_layers": 24, "intermediate_size": 4864, "head_dim": 64,
    "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
}  # fmt: skip
TIED = "-tied"  # behind a mix: the output is the embedding


def gguf_model(mix: str) -> Path:
    """The file of `mix`, a key of MIXES with or without TIED behind it, written if need be."""
    path = PLACE / f"wide-{mix}.gguf"
    if not path.exists():
        PLACE.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        _write(unfinished, mix)
        unfinished.rename(path)
    return path


def types(mix: str) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """(name, type, shape) of each matrix."""
    most, output, better = MIXES[mix.removesuffix(TIED)]
    is_tied = mix.endswith(TIED)
    yield "token_embd", output if is_tied else most, (VOCABULARY, HIDDEN)
    if not is_tied:
        yield "output", output, (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        eighth = LAYERS // 8
        is_better = not eighth <= layer < 7 * eighth or (layer - eighth) % 3 == 2
        some, start = better if is_better else most, f"blk.{layer}."
        yield start + "attn_q", most, (HEADS * HEAD_DIM, HIDDEN)
        yield start + "attn_k", most, (KEYS * HEAD_DIM, HIDDEN)
        yield start + "attn_v", some, (KEYS * HEAD_DIM, HIDDEN)
        yield start + "attn_output", most, (HIDDEN, HEADS * HEAD_DIM)
        yield start + "ffn_gate", most, (WIDE, HIDDEN)
        yield start + "ffn_up", most, (WIDE, HIDDEN)
        yield start + "ffn_down", some, (HIDDEN, WIDE)


def blocks(random: np.random.Generator, kind: str, shape: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Random bits but for the scales: weights are small, and about as often negative."""
    numbers, size, halves = BLOCKS[kind]
    found = random.integers(0, 256, (shape[0], shape[1] // numbers, size), np.uint8)
    for at, factor in zip(halves, (1, 8), strict=False):  # the minimum is half of the range
        scale = np.float16((0.002 if kind in ("Q4_0", "Q8_0") else 0.0001) * factor)
        found[:, :, at : at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    return found.reshape(shape[0], -1)


def add_parameters(writer: Any, config: dict[str, Any]) -> None:
    """Of a Llama whose config.json is `config`."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])


def add_tokenizer(writer: Any, tokenizer: dict[str, Any]) -> None:
    """Byte-level BPE whose tokenizer.json is `tokenizer`; 0 begins a text and 1 ends one."""
    import gguf

    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda entry: entry[1])
    special = {token["content"] for token in tokenizer["added_tokens"]}
    kinds = [
        gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL
        for token, _ in vocabulary
    ]
    merges = tokenizer["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def finish(writer: Any) -> None:
    steps: tuple[Callable[[], None], ...] = (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    )
    for step in steps:
        step()


def _write(path: Path, mix: str) -> None:
    import gguf

    from benchmarks.llm_model import CONFIG, write_tokenizer

    tokenizer = PLACE / "tokenizer.json"
    if not tokenizer.exists():
        write_tokenizer(tokenizer)
    own = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "intermediate_size": WIDE}
    own |= {"num_attention_heads": HEADS, "num_key_value_heads": KEYS, "head_dim": HEAD_DIM}
    writer = gguf.GGUFWriter(path, "llama", use_temp_file=True)
    add_parameters(writer, CONFIG | own)
    add_tokenizer(writer, json.loads(tokenizer.read_text()))
    random = np.random.default_rng(SEED)
    for name, kind, shape in types(mix):
        raw = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(f"{name}.weight", blocks(random, kind, shape), raw_dtype=raw)
    norms = (f"blk.{layer}.{role}_norm" for layer in range(LAYERS) for role in ("attn", "ffn"))
    for name in (*norms, "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    finish(writer)


def qwen_model() -> Path:
    """The file QWEN, written if need be."""
    import gguf

    path = PLACE / f"{QWEN}.gguf"
    if path.exists():
        return path
    PLACE.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, "qwen2", use_temp_file=True)
    add_parameters(writer, QWEN_CONFIG)
    add_tokenizer(writer, _random_tokenizer(QWEN_CONFIG["vocab_size"]))
    random = np.random.default_rng(SEED)
    hidden, wide, keys = 896, 4864, 128
    matrices = [("token_embd", "Q8_0", (QWEN_CONFIG["vocab_size"], hidden))]
    for layer in range(QWEN_CONFIG["num_hidden_layers"]):
        start, is_better = f"blk.{layer}.", not 3 <= layer < 21 or (layer - 3) % 3 == 2
        matrices += [
            (start + "attn_q", "Q5_0", (hidden, hidden)),
            (start + "attn_k", "Q5_0", (keys, hidden)),
            (start + "attn_v", "Q8_0" if is_better else "Q5_0", (keys, hidden)),
            (start + "attn_output", "Q5_0", (hidden, hidden)),
            (start + "ffn_gate", "Q5_0", (wide, hidden)),
            (start + "ffn_up", "Q5_0", (wide, hidden)),
            (start + "ffn_down", "Q6_K" if is_better else "Q4_K", (hidden, wide)),
        ]
        for name, width in (("attn_q", hidden), ("attn_k", keys), ("attn_v", keys)):
            writer.add_tensor(f"{start}{name}.bias", np.zeros(width, np.float32))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{start}{name}.weight", np.ones(hidden, np.float32))
    for name, kind, shape in matrices:
        raw = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(f"{name}.weight", blocks(random, kind, shape), raw_dtype=raw)
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    finish(writer)
    unfinished.rename(path)
    return path


def _random_tokenizer(size: int) -> dict[str, Any]:
    """A tokenizer.json of `size` tokens: two special ones, the bytes, and random merges."""
    from tokenizers.pre_tokenizers import ByteLevel

    random = np.random.default_rng(SEED)
    special = ["<|begin|>", "<|end|>"]
    tokens = dict.fromkeys([*special, *sorted(ByteLevel.alphabet())])
    texts, merges = list(tokens)[len(special) :], []
    while len(tokens) < size:
        for first, second in random.integers(0, len(texts), (size, 2)).tolist():
            pair = texts[first], texts[second]
            text = "".join(pair)
            if len(text) <= 8 and text not in tokens and len(tokens) < size:
                tokens[text] = None
                texts.append(text)
                merges.append(list(pair))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return {
        "model": {"vocab": vocabulary, "merges": merges},
        "added_tokens": [{"content": token} for token in special],
    }


def real_model() -> Path:
    """The file REAL, written if need be.  Raises SystemExit without the package it is of."""
    from examples.smollm2 import INSTALL, find_model

    path, source = PLACE / f"{REAL}.gguf", find_model()
    if source is None:
        raise SystemExit(f"no model: {INSTALL}")
    if not path.exists():
        PLACE.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        _round_to_q8_0(source, unfinished)
        unfinished.rename(path)
    return path


def _round_to_q8_0(source: Path, path: Path) -> None:
    import gguf

    reader, kind = gguf.GGUFReader(source), gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture", "general.file_type")):
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            element = field.types[-1] if is_array else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim > 1:
            writer.add_tensor(tensor.name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values)
    finish(writer)


def main() -> None:
    for name in sys.argv[1:] or MIXES:
        written = {REAL: real_model, QWEN: qwen_model}.get(name)
        print(written() if written else gguf_model(name), flush=True)


if __name__ == "__main__":
    main()
