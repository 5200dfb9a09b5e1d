"""Writes a Hugging Face Llama as GGUF: convert_gguf SOURCE TARGET bf16|q8_0|q4_0.

Runs in the environment llm_llama_cpp.  The quantised files are made by llama.cpp's own quantiser
from the bfloat16 one, every matrix in the type that the file is named by.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np

from benchmarks.gguf_models import add_parameters, add_tokenizer, finish

ALIGNED = 8  # bytes of the header's length in a safetensors file
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
TYPES = {
    "q8_0": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0),
    "q4_0": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0),
}


def tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """(name, uint16 bits) of a bfloat16 checkpoint."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(ALIGNED), "little")
        entries = json.loads(file.read(length))
    for name, entry in entries.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            start = ALIGNED + length + begin
            yield (
                name,
                np.fromfile(path, np.uint16, (end - begin) // 2, offset=start).reshape(
                    entry["shape"]
                ),
            )


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in OTHERS:
        return f"{OTHERS[stem]}.weight"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{LAYER[part]}.weight"


def permuted(rows: Any, heads: int) -> Any:
    """Queries and keys, in the order in which llama.cpp rotates pairs of neighbours."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def write_bf16(source: Path, target: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(target, "llama")
    add_parameters(writer, config)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    add_tokenizer(writer, json.loads((source / "tokenizer.json").read_text()))
    heads = {
        "q_proj": config["num_attention_heads"],
        "k_proj": config["num_key_value_heads"],
    }
    for name, bits in tensors(source / "model.safetensors"):
        own = next((heads[part] for part in heads if part in name), None)
        if own:
            bits = permuted(bits, own)
        if bits.ndim == 1:  # of a norm
            writer.add_tensor(gguf_name(name), (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(gguf_name(name), bits.view(np.uint8), raw_dtype=kind)
    finish(writer)


def main() -> None:
    source, target, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    unfinished = target.with_suffix(".unfinished")
    if kind == "bf16":
        write_bf16(source, unfinished)
    else:
        bf16 = target.with_name("bf16.gguf")
        if not bf16.exists():
            write_bf16(source, bf16)
        wanted = llama_cpp.llama_model_quantize_default_params()
        wanted.ftype, wanted.pure = TYPES[kind], True
        names = str(bf16).encode(), str(unfinished).encode()
        if llama_cpp.llama_model_quantize(*names, wanted):
            raise SystemExit(f"llama.cpp could not quantise {bf16}")
    unfinished.rename(target)


if __name__ == "__main__":
    main()
